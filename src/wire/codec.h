/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_WIRE_CODEC_H
#define GS_WIRE_CODEC_H

/*
 * Narrow wire formats. A codec turns float32 elements into fewer bytes and back; nothing else about a wire is here.
 *
 * Callers are between gs_float_mode_enter and gs_float_mode_leave (base/float_mode.h), since subnormals must not be
 * flushed. There every codec gives the same bytes and the same floats on every machine and with every instruction set:
 * what a rank decodes is what every other rank decodes. And round(x) is decode(encode(x)) bit for bit, so ranks that
 * share memory get what a wire between them would have given.
 *
 * Nothing is hidden: where a block holds inf or NaN, it decodes to values that are not finite either. A NaN is always
 * the same one afterwards, quiet, positive and without payload.
 */

#include "base/dtype.h"
#include "base/kernels.h"

/* What an encoder needs to know beyond the elements. */
typedef struct gs_codec_terms {
    float scale;        /* float16: a power of two from 2^-112 to 2^126; elements are multiplied by it first */
    bool is_stochastic; /* int8: rounds up or down with probabilities that make the mean exact */
    uint64_t key;       /* is_stochastic: of the random numbers; differs by seed, step, rank and gradient */
    uint64_t element;   /* is_stochastic: number of the first element under this key; a block may not depend on where
                           a call began, so whoever encodes in pieces counts on */
} gs_codec_terms;

typedef struct gs_codec {
    const char *name;
    size_t block;       /* elements that are encoded together; 1: each by itself */
    size_t block_bytes; /* on the wire */

    /* count elements, a multiple of block, to count / block * block_bytes bytes. findings (NULL: not looked for) gets
     * all but square_sum and nonfinite_source; elements are counted from x. 16-bit wires are aligned to 2 bytes. */
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

/* Rounded to nearest even; float16 after multiplication with the scale, saturating at 65504, bfloat16 at its largest
 * value. 2 bytes an element. */
extern const gs_codec gs_codec_float16;
extern const gs_codec gs_codec_bfloat16;
/*
 * Blocks of 256 codes of 8 bits, then their scale: absmax / 127 as float32. 260 bytes a block. The error of one
 * element is at most absmax / 254 * (1 + 2^-14), stochastic twice that, plus 2^-149: a float32 product of code and
 * scale cannot do much better. -0 becomes 0.
 */
extern const gs_codec gs_codec_int8;
/*
 * Blocks of 256 codes of E4M3 (largest 448), then their scale as one byte e: codes are multiplied by 2^(e - 127), the
 * least power of two with which nothing is beyond 448; e 255: the block decodes to NaN. 257 bytes a block. Where that
 * makes 2^128 of an element, it saturates below.
 */
extern const gs_codec gs_codec_float8;

/* Exactly k of count elements, those of largest magnitude, lowest index first among equals; NaN counts as larger than
 * everything, and -0 as equal to 0. indices ascend. scratch: gs_topk_scratch_bytes(count). */
size_t gs_topk_scratch_bytes(size_t count);
void gs_topk_select(const float *x, size_t count, size_t k, uint32_t *indices, void *scratch);

#endif
