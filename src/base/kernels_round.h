/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Part of kernels_body.h: float32 elements as they come out of a narrow wire, in two ways. `cross` holds for every
 * element, but has none saturate and does not keep infinities apart from NaN. `round` takes half as long and holds for
 * what is no cause for doubt: see kernels_notice.h.
 */

typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));

typedef struct narrow_wire {
    int to;          /* of gs_rounding */
    float scale;     /* 1, or of HALF */
    float inverse;   /* of the scale */
    float limit;     /* the least magnitude that would become infinite */
    float saturated; /* what it becomes */
    float flushed;   /* the largest magnitude that becomes 0, or more */
    float ceiling;   /* the least magnitude that `round` cannot do */
    float least;     /* the smallest normal number */
    uint32_t lift;   /* from a power of two to 1.5 times the one that has its last bit where the wire has it */
} narrow_wire;

INLINE narrow_wire wire_of(gs_rounding rounding) {
    if (rounding.to == GS_ROUND_HALF) {
        const float inverse = 1.0f / rounding.scale;
        const float limit = 65520.0f * inverse;
        return (narrow_wire){.to = GS_ROUND_HALF,
                             .scale = rounding.scale,
                             .inverse = inverse,
                             .limit = limit,
                             .saturated = 65504.0f * inverse,
                             .flushed = 0x1p-25f * inverse,
                             .ceiling = limit < 0x1p113f ? limit : 0x1p113f,
                             .least = 0x1p-14f * inverse,
                             .lift = (13u << 23) | 0x400000u};
    }
    return (narrow_wire){.to = (int)rounding.to,
                         .scale = 1.0f,
                         .inverse = 1.0f,
                         .limit = 0x1.ffp+127f,
                         .saturated = 0x1.fep+127f,
                         .flushed = 0x1p-134f,
                         .ceiling = 0x1p110f,
                         .least = 0x1p-126f,
                         .lift = (16u << 23) | 0x400000u};
}

/* Otherwise subnormal numbers and infinities get in the way of `round` where none is expected. */
INLINE bool is_wire_moderate(const narrow_wire *wire) {
    return wire->scale >= 0x1p-100f && wire->scale <= 0x1p100f;
}

/* Below 2^-14 adding 0.5 leaves the rounding to the adder, whose unit there is the 2^-24 of subnormal halves. */
INLINE vector_f32 through_half(vector_f32 x) {
    const vector_of_bits_f32 magnitude = (vector_of_bits_f32)x & INT32_MAX;
    const vector_of_bits_f32 normal = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & ~0x1fff;
    const vector_f32 subnormal = (vector_f32)magnitude + 0.5f - 0.5f;
    const vector_f32 finite = choose_f32(magnitude < 0x38800000, subnormal, (vector_f32)normal);
    const vector_f32 rounded = choose_f32(magnitude >= 0x477ff000, all_f32(INFINITY), finite);
    return (vector_f32)((vector_of_bits_f32)rounded | ((vector_of_bits_f32)x & INT32_MIN));
}

/* In integers, because the instruction for it takes subnormal numbers for 0. */
INLINE vector_f32 through_bfloat(vector_f32 x) {
    const words bits = (words)x;
    const words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const vector_f32 zero = x - x; /* NOLINT(misc-redundant-expression): or NaN, which a carry may have made anything */
    return (vector_f32)rounded - zero;
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

/* Of magnitudes, which are ordered like their bits; NaN is the largest. */
INLINE vector_f32 larger_f32(vector_f32 a, vector_f32 b) {
#if defined(__AVX512F__)
    return (vector_f32)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vector_f32)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return choose_f32((vector_of_bits_f32)b > (vector_of_bits_f32)a, b, a);
#endif
}

static void take_absmax(gs_findings *findings, vector_f32 absmax) {
    for (size_t k = 0; k < VECTOR_BYTES / sizeof(float); k++) {
        findings->absmax = absmax[k] > findings->absmax ? absmax[k] : findings->absmax;
    }
}

/* What a step sees of magnitudes. The least one counts as its bits less 1, so that 0 comes last. */
typedef struct extremes {
    vector_f32 largest;
    words least;
} extremes;

INLINE void see_f32(extremes *seen, vector_f32 magnitude) {
    seen->largest = larger_f32(seen->largest, magnitude);
    seen->least = lesser_words(seen->least, (words)magnitude - 1);
}

INLINE vector_of_bits_f32 is_doubtful(const extremes *seen, const narrow_wire *wire) {
    const words flushes = (words)(seen->least < (words)all_f32(wire->flushed));
    const words overflows = (words)((vector_of_bits_f32)seen->largest >= (vector_of_bits_f32)all_f32(wire->ceiling));
    return (vector_of_bits_f32)(flushes | overflows);
}

/* Adding a number of the right size leaves the rounding to the adder; the sign is that of -0. */
INLINE vector_f32 round_f32(vector_f32 x, vector_f32 magnitude, const narrow_wire *wire) {
    const vector_f32 at_least = larger_f32(magnitude, all_f32(wire->least));
    const vector_f32 large = (vector_f32)(((words)at_least & 0x7f800000u) + wire->lift);
    return (vector_f32)((words)((x + large) - large) | ((words)x & 0x80000000u));
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

/* The square of a float is exact as a double, so that it does not matter whether it is rounded before it is added. */
INLINE double_vector add_square_f32(double_vector sum, double_vector x) {
#if defined(__AVX512F__)
    return (double_vector)_mm512_fmadd_pd((__m512d)x, (__m512d)x, (__m512d)sum);
#else
    return sum + x * x;
#endif
}
