/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/codec_round.h"

/* Both formats, as far as they differ only in numbers. A NaN is always the same one, as it is everywhere else. */
typedef struct half_format {
    uint16_t (*from_float)(float x);
    uint16_t largest;
    uint16_t infinity;
    uint16_t nan;
} half_format;

static const half_format float16 = {gs_half_from_float, 0x7bff, 0x7c00, 0x7e00};
static const half_format bfloat16 = {gs_bfloat_from_float, 0x7f7f, 0x7f80, 0x7fc0};

static uint16_t encode_one(const half_format *format, const gs_narrowing *how, float x) {
    const uint32_t magnitude = gs_magnitude(x);
    const uint16_t sign = (uint16_t)(gs_float_bits(x) >> 16 & 0x8000u);
    if (magnitude > GS_INFINITY) {
        return format->nan;
    }
    if (magnitude == GS_INFINITY) {
        return sign | format->infinity;
    }
    return magnitude >= how->end ? sign | format->largest : format->from_float(x * how->scale);
}

/* Elements [first, end) of the call, among which some are out of the ordinary. */
static void encode_carefully(const half_format *format, const gs_narrowing *how, uint16_t *wire, const float *x,
                             size_t first, size_t end, gs_findings *findings) {
    for (size_t k = first; k < end; k++) {
        const uint32_t magnitude = gs_magnitude(x[k]);
        wire[k] = encode_one(format, how, x[k]);
        if (magnitude >= GS_INFINITY) {
            gs_codec_note_nonfinite(findings, k);
        } else if (findings != NULL) {
            gs_codec_note_finite(findings, x[k], magnitude <= how->flushed_most);
            findings->saturated += magnitude >= how->end;
        }
    }
}

typedef size_t (*encode_kernel)(uint16_t *wire, const float *x, size_t count, const gs_narrowing *how,
                                gs_findings *findings);

static void encode(const half_format *format, encode_kernel kernel, const gs_narrowing *how, uint16_t *wire,
                   const float *x, size_t count, gs_findings *findings) {
    size_t done = 0;
    for (;;) {
        done += kernel(wire + done, x + done, count - done, how, findings);
        if (done == count) {
            return;
        }
        const size_t end = count - done < GS_NARROWING_GROUP ? count : done + GS_NARROWING_GROUP;
        encode_carefully(format, how, wire, x, done, end, findings);
        done = end;
    }
}

/* ---- float16 ---- */

static void float16_encode(void *wire, const float *x, size_t count, const gs_codec_terms *terms,
                           gs_findings *findings) {
    const gs_narrowing how = gs_half_narrowing(terms->scale);
    encode(&float16, gs_kernels_best()->encode_half, &how, wire, x, count, findings);
}

static void float16_decode(float *x, const void *wire, size_t count, const gs_codec_terms *terms) {
    gs_kernels_best()->decode_half(x, wire, count, 1.0f / terms->scale);
}

static void float16_decode_add(float *sum, const void *wire, size_t count, const gs_codec_terms *terms) {
    gs_kernels_best()->decode_add_half(sum, wire, count, 1.0f / terms->scale);
}

static void float16_round(float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings) {
    gs_codec_round(&gs_codec_float16, x, count, terms, findings);
}

const gs_codec gs_codec_float16 = {
    .name = "float16",
    .block = 1,
    .block_bytes = 2,
    .encode = float16_encode,
    .decode = float16_decode,
    .decode_add = float16_decode_add,
    .round = float16_round,
};

/* ---- bfloat16 ---- */

static void bfloat16_encode(void *wire, const float *x, size_t count, const gs_codec_terms *terms,
                            gs_findings *findings) {
    const gs_narrowing how = gs_bfloat_narrowing();
    (void)terms;
    encode(&bfloat16, gs_kernels_best()->encode_bfloat, &how, wire, x, count, findings);
}

static void bfloat16_decode(float *x, const void *wire, size_t count, const gs_codec_terms *terms) {
    (void)terms;
    gs_kernels_best()->widen_bfloat(x, wire, count);
}

static void bfloat16_decode_add(float *sum, const void *wire, size_t count, const gs_codec_terms *terms) {
    (void)terms;
    gs_kernels_best()->decode_add_bfloat(sum, wire, count);
}

static void bfloat16_round(float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings) {
    gs_codec_round(&gs_codec_bfloat16, x, count, terms, findings);
}

const gs_codec gs_codec_bfloat16 = {
    .name = "bfloat16",
    .block = 1,
    .block_bytes = 2,
    .encode = bfloat16_encode,
    .decode = bfloat16_decode,
    .decode_add = bfloat16_decode_add,
    .round = bfloat16_round,
};
