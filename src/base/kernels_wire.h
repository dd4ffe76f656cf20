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

INLINE uint32_t count_between_0_and(uint32_t most, const float *x, size_t count) {
    uint32_t between = 0;
    for (size_t k = 0; k < count; k++) {
        between += gs_magnitude(x[k]) - 1u < most;
    }
    return between;
}

/* Whether all are ordinary; then they are noted. */
INLINE bool note_group(const float *x, size_t count, const gs_narrowing *how, gs_findings *findings) {
    const uint32_t most = largest_magnitude(x, count);
    if (most >= how->end) {
        return false;
    }
    if (findings != NULL) {
        note_absmax(findings, most);
        findings->flushed += count_between_0_and(how->flushed_most, x, count);
    }
    return true;
}

INLINE void scale_to_half(uint16_t *restrict to, const float *restrict from, size_t count, float scale) {
    size_t k = 0;
#if defined(__AVX512F__)
    for (; k + 16 <= count; k += 16) {
        const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(from + k), _mm512_set1_ps(scale));
        _mm256_storeu_si256((__m256i *)(void *)(to + k), _mm512_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
    }
#elif defined(__F16C__)
    for (; k + 8 <= count; k += 8) {
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(from + k), _mm256_set1_ps(scale));
        _mm_storeu_si128((__m128i *)(void *)(to + k), _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; k < count; k++) {
        to[k] = gs_half_from_float(from[k] * scale);
    }
}

static size_t encode_half(uint16_t *restrict wire, const float *restrict x, size_t count, const gs_narrowing *how,
                          gs_findings *findings) {
    for (size_t k = 0; k < count; k += GS_NARROWING_GROUP) {
        const size_t group = count - k < GS_NARROWING_GROUP ? count - k : GS_NARROWING_GROUP;
        if (!note_group(x + k, group, how, findings)) {
            return k;
        }
        scale_to_half(wire + k, x + k, group, how->scale);
    }
    return count;
}

/* As gs_bfloat_from_float, but for NaN, which is not ordinary. */
static size_t encode_bfloat(uint16_t *restrict wire, const float *restrict x, size_t count, const gs_narrowing *how,
                            gs_findings *findings) {
    for (size_t k = 0; k < count; k += GS_NARROWING_GROUP) {
        const size_t group = count - k < GS_NARROWING_GROUP ? count - k : GS_NARROWING_GROUP;
        if (!note_group(x + k, group, how, findings)) {
            return k;
        }
        for (size_t i = k; i < k + group; i++) {
            const uint32_t bits = gs_float_bits(x[i]);
            wire[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
        }
    }
    return count;
}

static void decode_half(float *restrict x, const uint16_t *restrict wire, size_t count, float factor) {
    size_t k = 0;
#if defined(__AVX512F__)
    for (; k + 16 <= count; k += 16) {
        const __m512 wide = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(wire + k)));
        _mm512_storeu_ps(x + k, _mm512_mul_ps(wide, _mm512_set1_ps(factor)));
    }
#elif defined(__F16C__)
    for (; k + 8 <= count; k += 8) {
        const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(wire + k)));
        _mm256_storeu_ps(x + k, _mm256_mul_ps(wide, _mm256_set1_ps(factor)));
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

/* ---- int8 ---- */

INLINE bool is_ordinary_int8(uint32_t most) {
    return most >= GS_INT8_LEAST && most < GS_INT8_END;
}

INLINE float load_float(const uint8_t *bytes) {
    float value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

INLINE uint32_t count_zero_codes(const uint8_t *restrict codes, const float *restrict x) {
    uint32_t flushed = 0;
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        flushed += (uint32_t)((codes[k] & 0x7f) == 0) & (uint32_t)(gs_magnitude(x[k]) != 0);
    }
    return flushed;
}

INLINE void note_block(const uint8_t *codes, const float *x, uint32_t most, gs_findings *findings) {
    if (findings != NULL) {
        note_absmax(findings, most);
        findings->flushed += count_zero_codes(codes, x);
    }
}

static size_t encode_int8(uint8_t *restrict wire, const float *restrict x, size_t count, gs_findings *findings) {
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        uint8_t *const restrict block = wire + k / GS_WIRE_BLOCK * GS_INT8_BLOCK_BYTES;
        const uint32_t most = largest_magnitude(x + k, GS_WIRE_BLOCK);
        if (!is_ordinary_int8(most)) {
            return k;
        }
        const float scale = gs_float_from_bits(most) / 127.0f;
        const float factor = 127.0f / gs_float_from_bits(most);
        for (size_t i = 0; i < GS_WIRE_BLOCK; i++) {
            block[i] = (uint8_t)gs_int8_code(x[k + i] * factor);
        }
        memcpy(block + GS_WIRE_BLOCK, &scale, sizeof scale);
        note_block(block, x + k, most, findings);
    }
    return count;
}

static size_t encode_int8_stochastic(uint8_t *restrict wire, const float *restrict x, size_t count,
                                     gs_random_stream stream, uint32_t number, gs_findings *findings) {
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        uint8_t *const restrict block = wire + k / GS_WIRE_BLOCK * GS_INT8_BLOCK_BYTES;
        const uint32_t most = largest_magnitude(x + k, GS_WIRE_BLOCK);
        if (!is_ordinary_int8(most)) {
            return k;
        }
        const float absmax = gs_float_from_bits(most);
        const float scale = absmax / 127.0f;
        const float factor = gs_int8_fixed_factor(absmax, 127.0f * 0x1p24f / absmax);
        for (uint32_t i = 0; i < GS_WIRE_BLOCK; i++) {
            const uint32_t random_bits = gs_random_bits(stream, number + (uint32_t)k + i);
            block[i] = (uint8_t)gs_int8_stochastic_code(x[k + i] * factor, random_bits);
        }
        memcpy(block + GS_WIRE_BLOCK, &scale, sizeof scale);
        note_block(block, x + k, most, findings);
    }
    return count;
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

static size_t encode_float8(uint8_t *restrict wire, const float *restrict x, size_t count, gs_findings *findings) {
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        uint8_t *const restrict block = wire + k / GS_WIRE_BLOCK * GS_FLOAT8_BLOCK_BYTES;
        const uint32_t most = largest_magnitude(x + k, GS_WIRE_BLOCK);
        if (most >= GS_FLOAT8_END) {
            return k;
        }
        const uint32_t exponent = gs_float8_exponent(most);
        const float factor = gs_float8_factor(exponent);
        for (size_t i = 0; i < GS_WIRE_BLOCK; i++) {
            block[i] = (uint8_t)gs_float8_from_float(x[k + i] * factor);
        }
        block[GS_WIRE_BLOCK] = (uint8_t)exponent;
        note_block(block, x + k, most, findings);
    }
    return count;
}

static void decode_float8(float *restrict x, const uint8_t *restrict wire, size_t count) {
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        const uint8_t *const restrict block = wire + k / GS_WIRE_BLOCK * GS_FLOAT8_BLOCK_BYTES;
        const float scale = gs_float8_scale(block[GS_WIRE_BLOCK]);
        for (size_t i = 0; i < GS_WIRE_BLOCK; i++) {
            x[k + i] = gs_float8_to_float(block[i]) * scale;
        }
    }
}

static void decode_add_float8(float *restrict sum, const uint8_t *restrict wire, size_t count) {
    for (size_t k = 0; k < count; k += GS_WIRE_BLOCK) {
        const uint8_t *const restrict block = wire + k / GS_WIRE_BLOCK * GS_FLOAT8_BLOCK_BYTES;
        const float scale = gs_float8_scale(block[GS_WIRE_BLOCK]);
        for (size_t i = 0; i < GS_WIRE_BLOCK; i++) {
            sum[k + i] = sum_with_one_nan(sum[k + i], gs_float8_to_float(block[i]) * scale);
        }
    }
}
