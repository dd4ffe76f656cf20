/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/codec_round.h"

/*
 * A code is x * (127 / absmax), the factor rounded once for the block and the product once for the element: multiplying
 * is several times faster than dividing by the scale. The quotient may so be off by 127 * 2^-23, the scale by 2^-24 of
 * itself and the decoded product likewise, which makes the error of one quantisation absmax / 254 * (1 + 2^-14) at
 * most, and 2^-149 more where the scale is subnormal. Dividing would leave 1 + 2^-15.
 */

static void encode_finite_block(uint8_t *wire, const float *x, float absmax, const gs_random_stream *stream,
                                uint32_t number) {
    const gs_int8_block block = gs_int8_block_of(absmax);
    const float fixed = gs_int8_fixed_factor(absmax * block.lift, block.factor * 0x1p24f);
    for (uint32_t k = 0; k < GS_WIRE_BLOCK; k++) {
        const float lifted = x[k] * block.lift;
        wire[k] =
            (uint8_t)(stream == NULL ? gs_int8_code(lifted * block.factor)
                                     : gs_int8_stochastic_code(lifted * fixed, gs_random_bits(*stream, number + k)));
    }
    memcpy(wire + GS_WIRE_BLOCK, &block.scale, sizeof block.scale);
}

/* All codes 0. With a scale of NaN they decode to NaN. */
static void encode_without_codes(uint8_t *wire, uint32_t scale_bits) {
    memset(wire, 0, GS_WIRE_BLOCK);
    memcpy(wire + GS_WIRE_BLOCK, &scale_bits, sizeof scale_bits);
}

/* x: the block's elements, the first of which has the number `first` in the call. */
static void encode_carefully(uint8_t *wire, const float *x, size_t first, const gs_random_stream *stream,
                             uint32_t number, gs_findings *findings) {
    uint32_t most = 0;
    for (size_t k = 0; k < GS_WIRE_BLOCK; k++) {
        most = gs_magnitude(x[k]) > most ? gs_magnitude(x[k]) : most;
    }
    const bool is_finite = most < GS_INFINITY;
    if (most == 0 || !is_finite) {
        encode_without_codes(wire, is_finite ? 0 : GS_ONE_NAN);
    } else {
        encode_finite_block(wire, x, gs_float_from_bits(most), stream, number);
    }
    for (size_t k = 0; k < GS_WIRE_BLOCK && findings != NULL; k++) {
        if (gs_magnitude(x[k]) >= GS_INFINITY) {
            gs_codec_note_nonfinite(findings, first + k);
        } else {
            gs_codec_note_finite(findings, x[k], is_finite && wire[k] == 0);
        }
    }
}

static uint8_t *block_at(void *wire, size_t element) {
    return (uint8_t *)wire + element / GS_WIRE_BLOCK * GS_INT8_BLOCK_BYTES;
}

static void encode_nearest(void *wire, const float *x, size_t count, gs_findings *findings) {
    const gs_kernels *const kernels = gs_kernels_best();
    size_t done = 0;
    for (;;) {
        done += kernels->encode_int8(block_at(wire, done), x + done, count - done, findings);
        if (done == count) {
            return;
        }
        encode_carefully(block_at(wire, done), x + done, done, NULL, 0, findings);
        done += GS_WIRE_BLOCK;
    }
}

/* Streams hold 2^32 numbers: a block takes the one in which its first element is. */
static size_t count_in_stream(uint64_t element, size_t count) {
    const uint64_t left = (UINT64_C(1) << 32) - (element & UINT32_MAX);
    const uint64_t blocks = (left + GS_WIRE_BLOCK - 1) / GS_WIRE_BLOCK;
    return count < blocks * GS_WIRE_BLOCK ? count : (size_t)(blocks * GS_WIRE_BLOCK);
}

static void encode_stochastic(void *wire, const float *x, size_t count, const gs_codec_terms *terms,
                              gs_findings *findings) {
    const gs_kernels *const kernels = gs_kernels_best();
    size_t done = 0;
    while (done < count) {
        const uint64_t element = terms->element + done;
        const gs_random_stream stream = gs_random_stream_of(terms->key, (uint32_t)(element >> 32));
        const size_t part = count_in_stream(element, count - done);
        const size_t ordinary =
            kernels->encode_int8_stochastic(block_at(wire, done), x + done, part, stream, (uint32_t)element, findings);
        done += ordinary;
        if (ordinary < part) {
            encode_carefully(block_at(wire, done), x + done, done, &stream, (uint32_t)(element + ordinary), findings);
            done += GS_WIRE_BLOCK;
        }
    }
}

static void int8_encode(void *wire, const float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings) {
    if (terms->is_stochastic) {
        encode_stochastic(wire, x, count, terms, findings);
    } else {
        encode_nearest(wire, x, count, findings);
    }
}

static void int8_decode(float *x, const void *wire, size_t count, const gs_codec_terms *terms) {
    (void)terms;
    gs_kernels_best()->decode_int8(x, wire, count);
}

static void int8_decode_add(float *sum, const void *wire, size_t count, const gs_codec_terms *terms) {
    (void)terms;
    gs_kernels_best()->decode_add_int8(sum, wire, count);
}

static void int8_round(float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings) {
    gs_codec_round(&gs_codec_int8, x, count, terms, findings);
}

const gs_codec gs_codec_int8 = {
    .name = "int8",
    .block = GS_WIRE_BLOCK,
    .block_bytes = GS_INT8_BLOCK_BYTES,
    .encode = int8_encode,
    .decode = int8_decode,
    .decode_add = int8_decode_add,
    .round = int8_round,
};
