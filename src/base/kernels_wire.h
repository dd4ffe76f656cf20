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

INLINE uint32_t smallest_magnitude(const float *x, size_t count) {
    int32_t least = INT32_MAX;
    for (size_t k = 0; k < count; k++) {
        const int32_t magnitude = (int32_t)gs_magnitude(x[k]);
        least = magnitude < least ? magnitude : least;
    }
    return (uint32_t)least;
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
INLINE group_notes encode_bfloat_group(uint16_t *restrict wire, const float *restrict x, size_t count, bool notes) {
    int32_t most = 0;
    uint32_t least = UINT32_MAX;
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

/* ---- blocks of 8 bits ---- */

/* Of a whole block. Halves of it, so that a byte can count: sums of bytes are the fastest. */
INLINE uint32_t count_zero_codes(const uint8_t *codes) {
    uint32_t zeros = 0;
    for (size_t half = 0; half < GS_WIRE_BLOCK; half += GS_WIRE_BLOCK / 2) {
        uint8_t of_half = 0;
        for (size_t k = 0; k < GS_WIRE_BLOCK / 2; k++) {
            of_half += (codes[half + k] & 0x7f) == 0;
        }
        zeros += of_half;
    }
    return zeros;
}

/* Elements are rarely 0 before they are encoded: only where one is they are counted. */
INLINE void note_block(const uint8_t *codes, const float *x, uint32_t most, gs_findings *findings) {
    if (findings != NULL) {
        const uint32_t zeros = count_zero_codes(codes);
        note_absmax(findings, most);
        findings->flushed += smallest_magnitude(x, GS_WIRE_BLOCK) > 0
                                 ? zeros
                                 : zeros + count_between_0_and(INT32_MAX, x, GS_WIRE_BLOCK) - GS_WIRE_BLOCK;
    }
}

/* What encoding with random numbers takes: where they come from, and the number of an element there. */
typedef struct block_terms {
    gs_random_stream stream;
    uint32_t number;
} block_terms;

typedef void (*block_encoder)(uint8_t *block, const float *x, uint32_t most, block_terms terms);

/*
 * Blocks are ordinary if their largest magnitude is from `least` on and before `end`. The next one's is looked for
 * before a block is encoded, which gives the processor something to do while it waits for a scale.
 */
INLINE size_t encode_blocks(uint8_t *wire, const float *x, size_t count, size_t block_bytes, uint32_t least,
                            uint32_t end, block_encoder encode, block_terms terms, gs_findings *findings) {
    uint32_t most = count > 0 ? largest_magnitude(x, GS_WIRE_BLOCK) : 0;
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        uint8_t *const block = wire + k / GS_WIRE_BLOCK * block_bytes;
        if (most < least || most >= end) {
            return k;
        }
        const size_t next = k + GS_WIRE_BLOCK;
        const uint32_t next_most = next < count ? largest_magnitude(x + next, GS_WIRE_BLOCK) : 0;
        encode(block, x + k, most, (block_terms){terms.stream, terms.number + (uint32_t)k});
        note_block(block, x + k, most, findings);
        most = next_most;
    }
    return count;
}

/* ---- int8 ---- */

INLINE void int8_block(uint8_t *restrict block, const float *restrict x, uint32_t most, block_terms terms) {
    const float scale = gs_float_from_bits(most) / 127.0f;
    const float factor = 127.0f / gs_float_from_bits(most);
    (void)terms;
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        block[k] = (uint8_t)gs_int8_code(x[k] * factor);
    }
    memcpy(block + GS_WIRE_BLOCK, &scale, sizeof scale);
}

INLINE void int8_stochastic_block(uint8_t *restrict block, const float *restrict x, uint32_t most, block_terms terms) {
    const float absmax = gs_float_from_bits(most);
    const float scale = absmax / 127.0f;
    const float factor = gs_int8_fixed_factor(absmax, 127.0f * 0x1p24f / absmax);
    for (uint32_t k = 0; k < GS_WIRE_BLOCK; k++) {
        const uint32_t random_bits = gs_random_bits(terms.stream, terms.number + k);
        block[k] = (uint8_t)gs_int8_stochastic_code(x[k] * factor, random_bits);
    }
    memcpy(block + GS_WIRE_BLOCK, &scale, sizeof scale);
}

static size_t encode_int8(uint8_t *wire, const float *x, size_t count, gs_findings *findings) {
    const block_terms terms = {{0, 0}, 0};
    return encode_blocks(wire, x, count, GS_INT8_BLOCK_BYTES, GS_INT8_LEAST, GS_INT8_END, int8_block, terms, findings);
}

static size_t encode_int8_stochastic(uint8_t *wire, const float *x, size_t count, gs_random_stream stream,
                                     uint32_t number, gs_findings *findings) {
    const block_terms terms = {stream, number};
    return encode_blocks(wire, x, count, GS_INT8_BLOCK_BYTES, GS_INT8_LEAST, GS_INT8_END, int8_stochastic_block, terms,
                         findings);
}

INLINE float load_float(const uint8_t *bytes) {
    float value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static void decode_int8(float *restrict x, const uint8_t *restrict wire, size_t count) {
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        const uint8_t *const restrict block = wire + k / GS_WIRE_BLOCK * GS_INT8_BLOCK_BYTES;
        const float scale = load_float(block + GS_WIRE_BLOCK);
        for (size_t i = 0; i < GS_WIRE_BLOCK; i++) {
            x[k + i] = (float)(int8_t)block[i] * scale;
        }
    }
}

static void decode_add_int8(float *restrict sum, const uint8_t *restrict wire, size_t count) {
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        const uint8_t *const restrict block = wire + k / GS_WIRE_BLOCK * GS_INT8_BLOCK_BYTES;
        const float scale = load_float(block + GS_WIRE_BLOCK);
        for (size_t i = 0; i < GS_WIRE_BLOCK; i++) {
            sum[k + i] = sum_with_one_nan(sum[k + i], (float)(int8_t)block[i] * scale);
        }
    }
}

/* ---- float8 ---- */

INLINE void float8_block(uint8_t *restrict block, const float *restrict x, uint32_t most, block_terms terms) {
    const uint32_t exponent = gs_float8_exponent(most);
    const float factor = gs_float8_factor(exponent);
    (void)terms;
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        block[k] = (uint8_t)gs_float8_from_float(x[k] * factor);
    }
    block[GS_WIRE_BLOCK] = (uint8_t)exponent;
}

static size_t encode_float8(uint8_t *wire, const float *x, size_t count, gs_findings *findings) {
    const block_terms terms = {{0, 0}, 0};
    return encode_blocks(wire, x, count, GS_FLOAT8_BLOCK_BYTES, 0, GS_FLOAT8_END, float8_block, terms, findings);
}

#if defined(__AVX512F__) || defined(__F16C__)

/* A code's exponent and fraction, moved to where a half has them, are 2^-8 times its value, subnormal or not. */
INLINE vector_f32 load_float8(const uint8_t *codes) {
#if defined(__AVX512F__)
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)codes));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
    return (vector_f32)_mm512_cvtph_ps(halves);
#else
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)codes));
    const __m128i halves = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80));
    return (vector_f32)_mm256_cvtph_ps(halves);
#endif
}

INLINE bool has_float8_nan(const uint8_t *codes) {
    uint8_t any = 0;
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        any |= (uint8_t)((codes[k] & 0x7f) == 0x7f);
    }
    return any != 0;
}

/* 2^8 times the scale is finite; and no code is NaN, as none is that was encoded here. */
INLINE bool is_ordinary_float8(const uint8_t *block) {
    return block[GS_WIRE_BLOCK] < 247 && !has_float8_nan(block);
}

INLINE void float8_values(float *restrict x, const uint8_t *restrict block) {
    const float scale = gs_float8_scale(block[GS_WIRE_BLOCK]);
    if (is_ordinary_float8(block)) {
        for (size_t k = 0; k < GS_WIRE_BLOCK; k += FLOAT_LANES) {
            store_f32(x + k, load_float8(block + k) * (scale * 0x1p8f), FLOAT_LANES);
        }
        return;
    }
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        x[k] = gs_float8_to_float(block[k]) * scale;
    }
}

#else

INLINE void float8_values(float *restrict x, const uint8_t *restrict block) {
    const float scale = gs_float8_scale(block[GS_WIRE_BLOCK]);
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        x[k] = gs_float8_to_float(block[k]) * scale;
    }
}

#endif

static void decode_float8(float *restrict x, const uint8_t *restrict wire, size_t count) {
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        float8_values(x + k, wire + k / GS_WIRE_BLOCK * GS_FLOAT8_BLOCK_BYTES);
    }
}

static void decode_add_float8(float *restrict sum, const uint8_t *restrict wire, size_t count) {
    float values[GS_WIRE_BLOCK];
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        float8_values(values, wire + k / GS_WIRE_BLOCK * GS_FLOAT8_BLOCK_BYTES);
        for (size_t i = 0; i < GS_WIRE_BLOCK; i++) {
            sum[k + i] = sum_with_one_nan(sum[k + i], values[i]);
        }
    }
}
