/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_WIRE_CODEC_H
#define GS_WIRE_CODEC_H

/*
 * Narrow wire formats. A codec turns float32 elements into fewer bytes and back; nothing else about a wire is here.
 *
 * Every codec gives the same bytes and the same floats on every machine and with every instruction set, in every mode
 * of the floating-point unit that rounds to nearest: what a rank decodes is what every other rank decodes. And
 * round(x) is decode(encode(x)) bit for bit, so ranks that share memory get what a wire between them would have given.
 *
 * Nothing is hidden: where a block holds inf or NaN, it decodes to values that are not finite either.
 */

#include "base/kernels.h"

/* What an encoder needs to know beyond the elements. */
typedef struct gs_codec_terms {
    float scale;        /* float16: a power of two; elements are multiplied by it before they are rounded */
    bool is_stochastic; /* int8: rounds up or down with probabilities that make the mean exact */
    uint64_t key;       /* is_stochastic: of the random numbers; differs by seed, step, rank and gradient */
    uint64_t element;   /* is_stochastic: number of the first element under this key */
} gs_codec_terms;

typedef struct gs_codec {
    const char *name;
    size_t block;       /* elements that are encoded together; 1: each by itself */
    size_t block_bytes; /* on the wire */

    /* count elements, a multiple of block, to count / block * block_bytes bytes. findings (NULL: not looked for) gets
     * all but square_sum and nonfinite_source. */
    void (*encode)(void *wire, const float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings);
    void (*decode)(float *x, const void *wire, size_t count, const gs_codec_terms *terms);
    /* sum += what decode gives */
    void (*decode_add)(float *sum, const void *wire, size_t count, const gs_codec_terms *terms);
    /* x = what decode gives after encode. Any count: a last block may be short. */
    void (*round)(float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings);
} gs_codec;

static inline size_t gs_codec_bytes(const gs_codec *codec, size_t count) {
    return count / codec->block * codec->block_bytes;
}

/* Rounded to nearest even; float16 after multiplication with the scale, saturating at 65504. 2 bytes an element. */
extern const gs_codec gs_codec_float16;
extern const gs_codec gs_codec_bfloat16;
/* Blocks of 256 codes of 8 bits, then their scale: absmax / 127 as float32. 260 bytes a block. */
extern const gs_codec gs_codec_int8;
/* Blocks of 256 codes of E4M3 (largest 448), then their scale as one byte e: codes are multiplied by 2^(e - 127), the
 * least power of two with which nothing saturates; e 255: the block decodes to NaN. 257 bytes a block. */
extern const gs_codec gs_codec_float8;

/* Exactly k of count elements, those of largest magnitude, lowest index first among equals; NaN counts as larger than
 * everything, and -0 as equal to 0. indices ascend. scratch: gs_topk_scratch_bytes(count). */
size_t gs_topk_scratch_bytes(size_t count);
void gs_topk_select(const float *x, size_t count, size_t k, uint32_t *indices, void *scratch);

#endif
