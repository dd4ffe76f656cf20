/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_LAYOUT_H
#define CUDA_LAYOUT_H

/* Where a device has the blocks of wires of 8 bits, for the tests. */

#include "device/device_cuda.h"
#include "wire/codec.h"

#include <string.h>

enum { BLOCK = 256 };

static inline const gs_codec *codec_of(gs_cuda_codec codec) {
    return codec == GS_CUDA_INT8 ? &gs_codec_int8 : &gs_codec_float8;
}

/* From the codec's bytes to where the device has them, or back. */
static inline void lay_out(unsigned char *device, unsigned char *wire, size_t count, const gs_cuda_blocks *of,
                           bool to_device) {
    const size_t scale_bytes = codec_of(of->codec)->block_bytes - BLOCK;
    for (size_t b = 0; b < count / BLOCK; b++) {
        unsigned char *const part = device + b / of->per_part * of->part_bytes;
        unsigned char *const codes = part + b % of->per_part * BLOCK;
        unsigned char *const scale = part + of->per_part * BLOCK + b % of->per_part * scale_bytes;
        unsigned char *const block = wire + b * codec_of(of->codec)->block_bytes;
        memcpy(to_device ? codes : block, to_device ? block : codes, BLOCK);
        memcpy(to_device ? scale : block + BLOCK, to_device ? block + BLOCK : scale, scale_bytes);
    }
}

#endif
