/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Part of kernels_body.h: the loops of the codecs in src/wire over what is ordinary. Most are plain loops over elements
 * that nothing else points to, which compilers make vectors of by themselves.
 */

/* As integers magnitudes are ordered like their values, and NaNs are the largest. */
INLINE uint32_t largest_magnitude(const float *x, size_t count) {
    int32_t most = 0;
    for (size_t k = 0; k < count; k++) {
        const int32_t magnitude = (int32_t)gs_magnitude(x[k]);
        most = magnitude > most ? magnitude : most;
    }
    return (uint32_t)most;
}

INLINE uint32_t count_between_0_and(uint32_t most, const float *x, size_t count) {
    uint32_t between = 0;
    for (size_t k = 0; k < count; k++) {
        between += gs_magnitude(x[k]) - 1u < most;
    }
    return between;
}

INLINE void note_absmax(gs_findings *findings, uint32_t magnitude) {
    const float absmax = gs_float_from_bits(magnitude);
    findings->absmax = absmax > findings->absmax ? absmax : findings->absmax;
}

INLINE float sum_with_one_nan(float a, float b) {
    const float sum = a + b;
    const bool is_number = sum == sum; /* NOLINT(misc-redundant-expression): it is NaN that differs from itself */
    return gs_float_from_bits(gs_choose_bits(is_number, gs_float_bits(sum), GS_ONE_NAN));
}

/* ---- 16 bits ---- */

/* Of a group: the largest magnitude, and the smallest one other than 0, less 1. */
typedef struct group_notes {
    uint32_t most;
    uint32_t least;
} group_notes;

/* Whether all are ordinary; then they are noted. Those that became 0 are counted only where there are some. */
INLINE bool note_group(group_notes group, const float *x, size_t count, const gs_narrowing *how,
                       gs_findings *findings) {
    if (group.most >= how->end) {
        return false;
    }
    if (findings != NULL) {
        note_absmax(findings, group.most);
        if (group.least < how->flushed_most) {
            findings->flushed += count_between_0_and(how->flushed_most, x, count);
        }
    }
    return true;
}

/*
 * One group, written before it is known whether it is ordinary, so that each element is loaded once.
 */
#if defined(__AVX512F__) || defined(__F16C__)

enum { FLOAT_LANES = VECTOR_BYTES / sizeof(float) };
typedef uint32_t vector_of_magnitudes __attribute__((vector_size(VECTOR_BYTES)));

INLINE vector_f32 load_halves(const uint16_t *from) {
#if defined(__AVX512F__)
    return (vector_f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
#else
    return (vector_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
#endif
}

INLINE void store_halves(uint16_t *to, vector_f32 x) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#else
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#endif
}

INLINE vector_of_magnitudes larger_of(vector_of_magnitudes a, vector_of_magnitudes b) {
#if defined(__AVX512F__)
    return (vector_of_magnitudes)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    return (vector_of_magnitudes)_mm256_max_epi32((__m256i)a, (__m256i)b);
#endif
}

INLINE vector_of_magnitudes smaller_of(vector_of_magnitudes a, vector_of_magnitudes b) {
#if defined(__AVX512F__)
    return (vector_of_magnitudes)_mm512_min_epu32((__m512i)a, (__m512i)b);
#else
    return (vector_of_magnitudes)_mm256_min_epu32((__m256i)a, (__m256i)b);
#endif
}

/* So many lanes of a vector. */
INLINE void encode_halves(uint16_t *restrict wire, const float *restrict x, size_t lanes, float scale,
                          vector_of_magnitudes *most, vector_of_magnitudes *least) {
    const vector_f32 from = load_f32(x, lanes);
    const vector_of_magnitudes magnitudes = (vector_of_magnitudes)from & GS_MAGNITUDE;
    uint16_t halves[FLOAT_LANES];
    *most = larger_of(*most, magnitudes);
    *least = smaller_of(*least, magnitudes - 1);
    store_halves(halves, from * all_f32(scale));
    memcpy(wire, halves, lanes * sizeof *wire);
}

INLINE group_notes encode_half_group(uint16_t *restrict wire, const float *restrict x, size_t count, float scale) {
    vector_of_magnitudes most = {0};
    vector_of_magnitudes least = most - 1;
    size_t k = 0;
    for (; k + UNROLL * FLOAT_LANES <= count; k += UNROLL * FLOAT_LANES) {
        for (size_t u = 0; u < UNROLL; u++) {
            encode_halves(wire + k + u * FLOAT_LANES, x + k + u * FLOAT_LANES, FLOAT_LANES, scale, &most, &least);
        }
    }
    for (; k < count; k += FLOAT_LANES) {
        encode_halves(wire + k, x + k, count - k < FLOAT_LANES ? count - k : FLOAT_LANES, scale, &most, &least);
    }
    group_notes group = {most[0], least[0]};
    for (size_t lane = 1; lane < FLOAT_LANES; lane++) {
        group.most = most[lane] > group.most ? most[lane] : group.most;
        group.least = least[lane] < group.least ? least[lane] : group.least;
    }
    return group;
}

#else

/* Without instructions for the least of unsigned numbers counting costs no more. */
INLINE group_notes encode_half_group(uint16_t *restrict wire, const float *restrict x, size_t count, float scale) {
    for (size_t k = 0; k < count; k++) {
        wire[k] = gs_half_from_float(x[k] * scale);
    }
    return (group_notes){largest_magnitude(x, count), 0};
}

#endif

static size_t encode_half(uint16_t *restrict wire, const float *restrict x, size_t count, const gs_narrowing *how,
                          gs_findings *findings) {
    for (size_t k = 0; k < count; k += GS_NARROWING_GROUP) {
        const size_t left = count - k < GS_NARROWING_GROUP ? count - k : GS_NARROWING_GROUP;
        const group_notes group = encode_half_group(wire + k, x + k, left, how->scale);
        if (!note_group(group, x + k, left, how, findings)) {
            return k;
        }
    }
    return count;
}

/* As gs_bfloat_from_float, but for NaN, which is not ordinary. */
INLINE group_notes encode_bfloat_rest(uint16_t *restrict wire, const float *restrict x, size_t count, bool notes,
                                      group_notes group) {
    int32_t most = (int32_t)group.most;
    uint32_t least = group.least;
    for (size_t k = 0; k < count; k++) {
        const uint32_t bits = gs_float_bits(x[k]);
        const int32_t magnitude = (int32_t)(bits & GS_MAGNITUDE);
        const uint32_t less = (uint32_t)magnitude - 1u;
        most = magnitude > most ? magnitude : most;
        least = notes && less < least ? less : least;
        wire[k] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
    return (group_notes){(uint32_t)most, least};
}

#if defined(__AVX2__) && !defined(__AVX512F__)

/* The upper halves, rounded, of 8 elements. */
INLINE __m256i rounded_bfloats(__m256i bits) {
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
    return _mm256_srli_epi32(sum, 16);
}

INLINE __m256i load_bits(const float *x) {
    return _mm256_loadu_si256((const __m256i *)(const void *)x);
}

/* Compilers make some more instructions of it than there have to be. */
INLINE group_notes encode_bfloat_group(uint16_t *restrict wire, const float *restrict x, size_t count, bool notes) {
    const __m256i magnitude = _mm256_set1_epi32(GS_MAGNITUDE);
    const __m256i ones = _mm256_set1_epi32(-1);
    __m256i most[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i least[2] = {ones, ones};
    size_t k = 0;
    for (; k + 16 <= count; k += 16) {
        const __m256i low = load_bits(x + k);
        const __m256i high = load_bits(x + k + 8);
        const __m256i low_magnitude = _mm256_and_si256(low, magnitude);
        const __m256i high_magnitude = _mm256_and_si256(high, magnitude);
        most[0] = _mm256_max_epi32(most[0], low_magnitude);
        most[1] = _mm256_max_epi32(most[1], high_magnitude);
        if (notes) {
            least[0] = _mm256_min_epu32(least[0], _mm256_add_epi32(low_magnitude, ones));
            least[1] = _mm256_min_epu32(least[1], _mm256_add_epi32(high_magnitude, ones));
        }
        const __m256i packed = _mm256_packus_epi32(rounded_bfloats(low), rounded_bfloats(high));
        _mm256_storeu_si256((__m256i *)(void *)(wire + k), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    uint32_t lanes[2][8];
    _mm256_storeu_si256((__m256i *)(void *)lanes[0], _mm256_max_epi32(most[0], most[1]));
    _mm256_storeu_si256((__m256i *)(void *)lanes[1], _mm256_min_epu32(least[0], least[1]));
    group_notes group = {0, UINT32_MAX};
    for (size_t lane = 0; lane < 8; lane++) {
        group.most = lanes[0][lane] > group.most ? lanes[0][lane] : group.most;
        group.least = lanes[1][lane] < group.least ? lanes[1][lane] : group.least;
    }
    return encode_bfloat_rest(wire + k, x + k, count - k, notes, group);
}

#else

INLINE group_notes encode_bfloat_group(uint16_t *restrict wire, const float *restrict x, size_t count, bool notes) {
    return encode_bfloat_rest(wire, x, count, notes, (group_notes){0, UINT32_MAX});
}

#endif

static size_t encode_bfloat(uint16_t *restrict wire, const float *restrict x, size_t count, const gs_narrowing *how,
                            gs_findings *findings) {
    for (size_t k = 0; k < count; k += GS_NARROWING_GROUP) {
        const size_t left = count - k < GS_NARROWING_GROUP ? count - k : GS_NARROWING_GROUP;
        const group_notes group = findings != NULL ? encode_bfloat_group(wire + k, x + k, left, true)
                                                   : encode_bfloat_group(wire + k, x + k, left, false);
        if (!note_group(group, x + k, left, how, findings)) {
            return k;
        }
    }
    return count;
}

static void decode_half(float *restrict x, const uint16_t *restrict wire, size_t count, float factor) {
    size_t k = 0;
#if defined(__AVX512F__) || defined(__F16C__)
    for (; k + FLOAT_LANES <= count; k += FLOAT_LANES) {
        store_f32(x + k, load_halves(wire + k) * factor, FLOAT_LANES);
    }
#endif
    for (; k < count; k++) {
        x[k] = gs_half_to_float(wire[k]) * factor;
    }
}

static void decode_add_half(float *restrict sum, const uint16_t *restrict wire, size_t count, float factor) {
    float decoded[GS_NARROWING_GROUP];
    for (size_t k = 0; k < count; k += GS_NARROWING_GROUP) {
        const size_t group = count - k < GS_NARROWING_GROUP ? count - k : GS_NARROWING_GROUP;
        decode_half(decoded, wire + k, group, factor);
        for (size_t i = 0; i < group; i++) {
            sum[k + i] = sum_with_one_nan(sum[k + i], decoded[i]);
        }
    }
}

static void decode_add_bfloat(float *restrict sum, const uint16_t *restrict wire, size_t count) {
    for (size_t k = 0; k < count; k++) {
        sum[k] = sum_with_one_nan(sum[k], gs_bfloat_to_float(wire[k]));
    }
}
