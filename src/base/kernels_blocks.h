/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Part of kernels_body.h, behind kernels_wire.h: the wires of 8 bits an element, in blocks with a scale.
 */

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

/* The magnitudes of a block's elements lie between these. */
typedef struct block_range {
    uint32_t least;
    uint32_t most;
} block_range;

INLINE block_range range_of_block(const float *x) {
    int32_t least = INT32_MAX;
    int32_t most = 0;
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        const int32_t magnitude = (int32_t)gs_magnitude(x[k]);
        least = magnitude < least ? magnitude : least;
        most = magnitude > most ? magnitude : most;
    }
    return (block_range){(uint32_t)least, (uint32_t)most};
}

/* Elements are rarely 0 before they are encoded: only where one is they are counted. */
INLINE void note_block(const uint8_t *codes, const float *x, block_range range, gs_findings *findings) {
    if (findings != NULL) {
        const uint32_t zeros = count_zero_codes(codes);
        note_absmax(findings, range.most);
        findings->flushed +=
            range.least > 0 ? zeros : zeros + count_between_0_and(INT32_MAX, x, GS_WIRE_BLOCK) - GS_WIRE_BLOCK;
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
    block_range range = count > 0 ? range_of_block(x) : (block_range){0, 0};
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        uint8_t *const block = wire + k / GS_WIRE_BLOCK * block_bytes;
        if (range.most < least || range.most >= end) {
            return k;
        }
        const size_t next = k + GS_WIRE_BLOCK;
        const block_range next_range = next < count ? range_of_block(x + next) : (block_range){0, 0};
        encode(block, x + k, range.most, (block_terms){terms.stream, terms.number + (uint32_t)k});
        note_block(block, x + k, range, findings);
        range = next_range;
    }
    return count;
}

/* ---- int8 ---- */

#if defined(__AVX2__) && !defined(__AVX512F__)

/* 8 elements as integers, rounded to nearest even. */
INLINE __m256i int8_lanes(const float *x, float factor) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(factor)));
}

/* Packing goes by halves of vectors, which leaves four codes each in another place. */
INLINE void int8_codes(uint8_t *restrict codes, const float *restrict x, float factor) {
    const __m256i places = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (size_t k = 0; k < GS_WIRE_BLOCK; k += 32) {
        const __m256i low = _mm256_packs_epi32(int8_lanes(x + k, factor), int8_lanes(x + k + 8, factor));
        const __m256i high = _mm256_packs_epi32(int8_lanes(x + k + 16, factor), int8_lanes(x + k + 24, factor));
        const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), places);
        _mm256_storeu_si256((__m256i *)(void *)(codes + k), packed);
    }
}

#else

INLINE void int8_codes(uint8_t *restrict codes, const float *restrict x, float factor) {
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        codes[k] = (uint8_t)gs_int8_code(x[k] * factor);
    }
}

#endif

INLINE void int8_block(uint8_t *restrict block, const float *restrict x, uint32_t most, block_terms terms) {
    const float scale = gs_float_from_bits(most) / 127.0f;
    const float factor = 127.0f / gs_float_from_bits(most);
    (void)terms;
    int8_codes(block, x, factor);
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
