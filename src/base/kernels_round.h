/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Part of kernels_body.h: float32 elements as they come out of a narrow wire.
 *
 * Crossing by itself does not saturate, nor keep infinities apart from NaN: whatever has no finite value on the wire
 * comes out as one or the other. Sums of such values stay that way, so that one look at a result tells whether any
 * element has to be gone into (kernels_notice.h).
 */

typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));

typedef struct narrow_wire {
    int to;          /* of gs_rounding */
    float scale;     /* 1, or of HALF */
    float inverse;   /* of the scale */
    float limit;     /* the least magnitude that would become infinite */
    float saturated; /* what it becomes */
    float doubtful;  /* magnitudes up to this one may become 0 */
} narrow_wire;

/* Numbers that are subnormal already are all in doubt: undoing an extreme scale may flush them as well. */
INLINE narrow_wire wire_of(gs_rounding rounding) {
    if (rounding.to == GS_ROUND_HALF) {
        const float inverse = 1.0f / rounding.scale;
        const float flushed = 0x1p-25f * inverse;
        return (narrow_wire){GS_ROUND_HALF,      rounding.scale,     inverse,
                             65520.0f * inverse, 65504.0f * inverse, flushed > 0x1p-126f ? flushed : 0x1p-126f};
    }
    return (narrow_wire){(int)rounding.to, 1.0f, 1.0f, 0x1.ffp+127f, 0x1.fep+127f, 0x1p-126f};
}

/* Below 2^-14 adding 0.5 leaves the rounding to the adder, whose unit there is the 2^-24 of subnormal halves. */
INLINE vector_f32 through_half(vector_f32 x) {
#if defined(__AVX512F__)
    return (vector_f32)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__) && defined(__F16C__)
    return (vector_f32)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    const vector_of_bits_f32 magnitude = (vector_of_bits_f32)x & 0x7fffffff;
    const vector_of_bits_f32 normal = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & ~0x1fff;
    const vector_f32 subnormal = (vector_f32)magnitude + 0.5f - 0.5f;
    const vector_f32 finite = choose_f32(magnitude < 0x38800000, subnormal, (vector_f32)normal);
    const vector_f32 rounded = choose_f32(magnitude >= 0x477ff000, all_f32(INFINITY), finite);
    return (vector_f32)((vector_of_bits_f32)rounded | ((vector_of_bits_f32)x & INT32_MIN));
#endif
}

/* In integers, because the instruction for it takes subnormal numbers for 0. */
INLINE vector_f32 through_bfloat(vector_f32 x) {
    const words bits = (words)x;
    const words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    return (vector_f32)rounded - (x - x); /* 0, or NaN, which the carry may have made anything */
}

INLINE vector_f32 cross_f32(vector_f32 x, const narrow_wire *wire) {
    if (wire->to == GS_ROUND_HALF) {
        return through_half(x * all_f32(wire->scale)) * all_f32(wire->inverse);
    }
    return wire->to == GS_ROUND_BFLOAT ? through_bfloat(x) : x;
}

INLINE words lesser_words(words a, words b) {
#if defined(__AVX512F__)
    return (words)_mm512_min_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (words)_mm256_min_epu32((__m256i)a, (__m256i)b);
#else
    const words is_less = (words)(b < a);
    return (b & is_less) | (a & ~is_less);
#endif
}

/* Of magnitudes. */
INLINE vector_f32 larger_f32(vector_f32 a, vector_f32 b) {
#if defined(__AVX512F__)
    return (vector_f32)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vector_f32)_mm256_max_epi32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (vector_f32)_mm_max_ps((__m128)a, (__m128)b);
#else
    return choose_f32(b > a, b, a);
#endif
}

/* The least magnitude other than 0, as its bits less 1: so 0 comes last. */
INLINE vector_f32 least_of_f32(vector_f32 least, vector_f32 magnitude) {
    return (vector_f32)lesser_words((words)least, (words)magnitude - 1);
}

INLINE vector_of_bits_f32 is_doubtful_f32(vector_f32 least, const narrow_wire *wire) {
    return (vector_of_bits_f32)((words)least < (words)all_f32(wire->doubtful));
}

/* A half of the vector: as many elements as there are doubles in one. */
INLINE double_vector widen_part_f32(vector_f32 x, size_t part) {
#if defined(__AVX512F__)
    const __m256 of[2] = {_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1)};
    return (double_vector)_mm512_cvtps_pd(of[part]);
#elif defined(__AVX2__)
    const __m128 of[2] = {_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1)};
    return (double_vector)_mm256_cvtps_pd(of[part]);
#else
    typedef float half_vector __attribute__((vector_size(VECTOR_BYTES / 2)));
    half_vector of[2];
    memcpy(of, &x, sizeof of);
    return __builtin_convertvector(of[part], double_vector);
#endif
}
