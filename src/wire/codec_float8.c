/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/codec_round.h"

static float clamped(float x, float most) {
    if (x > most) {
        return most;
    }
    return x < -most ? -most : x;
}

/* A block that holds inf or NaN, x[0] being element `first` of the call. */
static void encode_nonfinite(uint8_t *wire, const float *x, size_t first, gs_findings *findings) {
    memset(wire, 0, GS_WIRE_BLOCK);
    wire[GS_WIRE_BLOCK] = GS_FLOAT8_NAN_EXPONENT;
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        if (gs_magnitude(x[k]) >= GS_INFINITY) {
            gs_codec_note_nonfinite(findings, first + k);
        } else {
            gs_codec_note_finite(findings, x[k], false);
        }
    }
}

static void encode_huge(uint8_t *wire, const float *x, gs_findings *findings) {
    const float factor = gs_float8_factor(GS_FLOAT8_LARGEST_EXPONENT);
    wire[GS_WIRE_BLOCK] = GS_FLOAT8_LARGEST_EXPONENT;
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        wire[k] = (uint8_t)gs_float8_from_float(clamped(x[k] * factor, GS_FLOAT8_LARGEST_SCALED));
        gs_codec_note_finite(findings, x[k], (wire[k] & 0x7f) == 0);
        if (findings != NULL) {
            findings->saturated += gs_magnitude(x[k]) >= GS_FLOAT8_END;
        }
    }
}

static void encode_carefully(uint8_t *wire, const float *x, size_t first, gs_findings *findings) {
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        if (gs_magnitude(x[k]) >= GS_INFINITY) {
            encode_nonfinite(wire, x, first, findings);
            return;
        }
    }
    encode_huge(wire, x, findings);
}

static void float8_encode(void *wire, const float *x, size_t count, const gs_codec_terms *terms,
                          gs_findings *findings) {
    const gs_kernels *const kernels = gs_kernels_best();
    uint8_t *const blocks = wire;
    size_t done = 0;
    (void)terms;
    for (;;) {
        done +=
            kernels->encode_float8(blocks + gs_codec_bytes(&gs_codec_float8, done), x + done, count - done, findings);
        if (done == count) {
            return;
        }
        encode_carefully(blocks + gs_codec_bytes(&gs_codec_float8, done), x + done, done, findings);
        done += GS_WIRE_BLOCK;
    }
}

static void float8_decode(float *x, const void *wire, size_t count, const gs_codec_terms *terms) {
    (void)terms;
    gs_kernels_best()->decode_float8(x, wire, count);
}

static void float8_decode_add(float *sum, const void *wire, size_t count, const gs_codec_terms *terms) {
    (void)terms;
    gs_kernels_best()->decode_add_float8(sum, wire, count);
}

static void float8_round(float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings) {
    gs_codec_round(&gs_codec_float8, x, count, terms, findings);
}

const gs_codec gs_codec_float8 = {
    .name = "float8",
    .block = GS_WIRE_BLOCK,
    .block_bytes = GS_FLOAT8_BLOCK_BYTES,
    .encode = float8_encode,
    .decode = float8_decode,
    .decode_add = float8_decode_add,
    .round = float8_round,
};
