/* SPDX-License-Identifier: Apache-2.0 */

/* Chooses the kernel for a pass. Compiled as C++ for the host too, with another way of launching: GS_CUDA_LAUNCH. */

#include "device/cuda_blocks.cuh"
#include "device/cuda_digests.cuh"
#include "device/cuda_feedback.cuh"
#include "device/device_cuda_kernels.h"

#if defined(__CUDACC__)
#include "device/cuda_launch.cuh"
#else
#include GS_CUDA_LAUNCH
#endif

using namespace gs_cuda_code;

namespace {

template <class D, class W> using PlainEncode = Encode<D, W, false>;
template <class D, class C> using PlainBlockEncode = BlockEncode<D, C, false>;
template <class D, class C> using OwingBlockEncode = BlockEncode<D, C, true>;

/* A launch that nobody implements, which is our own mistake. */
const int no_such_kernel = 98; /* cudaErrorInvalidDeviceFunction */

template <class Pass>
int launch_tiles(const char *what, const typename Pass::Arguments &of, const gs_cuda_term *host_terms, void *stream) {
    const size_t tile = (size_t)Pass::CHUNK * GS_CUDA_THREADS * GS_CUDA_CHUNKS;
    const size_t tiles = of.count / tile + (of.count % tile != 0);
    if (tiles == 0) {
        return 0;
    }
    const size_t blocks_max = GS_CUDA_BLOCKS_MAX;
    return launch<Pass>(what, of, host_terms, (unsigned)(tiles < blocks_max ? tiles : blocks_max), stream);
}

/* ---- wires of blocks ---- */

template <class Pass>
int launch_warps(const char *what, const typename Pass::Arguments &of, const gs_cuda_term *host_terms, void *stream) {
    const size_t per_block = GS_CUDA_THREADS / LANES;
    const size_t count = (Pass::block_count(of) + per_block - 1) / per_block;
    const size_t blocks_max = GS_CUDA_BLOCKS_MAX;
    return count == 0
               ? 0
               : launch_blocks<Pass>(what, of, host_terms, (unsigned)(count < blocks_max ? count : blocks_max), stream);
}

template <template <class, class> class Pass, class C>
int launch_codec(const char *what, const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms, gsync_dtype dtype,
                 void *stream) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        return launch_warps<Pass<Float32, C>>(what, of, host_terms, stream);
    case GSYNC_FLOAT16:
        return launch_warps<Pass<Float16, C>>(what, of, host_terms, stream);
    case GSYNC_BFLOAT16:
        return launch_warps<Pass<BFloat16, C>>(what, of, host_terms, stream);
    case GSYNC_FLOAT64:
        return launch_warps<Pass<Float64, C>>(what, of, host_terms, stream);
    default:
        return no_such_kernel;
    }
}

template <template <class, class> class Pass>
int launch_block_pass(const char *what, const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms,
                      gsync_dtype dtype, void *stream) {
    return of.blocks.codec == GS_CUDA_INT8 ? launch_codec<Pass, Int8>(what, of, host_terms, dtype, stream)
                                           : launch_codec<Pass, Float8>(what, of, host_terms, dtype, stream);
}

template <template <class, class> class Pass, class C> int load_codec() {
    const int results[] = {load_blocks_kernel<Pass<Float32, C>>(), load_blocks_kernel<Pass<Float16, C>>(),
                           load_blocks_kernel<Pass<BFloat16, C>>(), load_blocks_kernel<Pass<Float64, C>>()};
    for (const int result : results) {
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

/* ---- other wires ---- */

template <template <class, class> class Pass, class D>
int launch_from(const char *what, const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms, gsync_dtype wire,
                void *stream) {
    switch (wire) {
    case GSYNC_FLOAT32:
        return launch_tiles<Pass<D, Float32>>(what, of, host_terms, stream);
    case GSYNC_FLOAT16:
        return launch_tiles<Pass<D, Float16>>(what, of, host_terms, stream);
    case GSYNC_BFLOAT16:
        return launch_tiles<Pass<D, BFloat16>>(what, of, host_terms, stream);
    default:
        return no_such_kernel;
    }
}

template <template <class, class> class Pass>
int launch_pass(const char *what, const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms, gsync_dtype dtype,
                gsync_dtype wire, void *stream) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        return launch_from<Pass, Float32>(what, of, host_terms, wire, stream);
    case GSYNC_FLOAT16:
        return launch_from<Pass, Float16>(what, of, host_terms, wire, stream);
    case GSYNC_BFLOAT16:
        return launch_from<Pass, BFloat16>(what, of, host_terms, wire, stream);
    case GSYNC_FLOAT64:
        return wire == GSYNC_FLOAT64 ? launch_tiles<Pass<Float64, Float64>>(what, of, host_terms, stream)
                                     : launch_from<Pass, Float64>(what, of, host_terms, wire, stream);
    default:
        return no_such_kernel;
    }
}

template <template <class, class> class Pass, class D> int load_from() {
    const int results[] = {load_kernel<Pass<D, Float32>>(), load_kernel<Pass<D, Float16>>(),
                           load_kernel<Pass<D, BFloat16>>()};
    for (const int result : results) {
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

template <template <class, class> class Pass> int load_pass() {
    const int results[] = {load_from<Pass, Float32>(), load_from<Pass, Float16>(), load_from<Pass, BFloat16>(),
                           load_from<Pass, Float64>(), load_kernel<Pass<Float64, Float64>>()};
    for (const int result : results) {
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

/* ---- other wires, with error feedback ---- */

template <class D>
int launch_owing_from(const char *what, const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms,
                      gsync_dtype wire, void *stream) {
    switch (wire) {
    case GSYNC_FLOAT16:
        return launch_tiles<Encode<D, Float16, true>>(what, of, host_terms, stream);
    case GSYNC_BFLOAT16:
        return launch_tiles<Encode<D, BFloat16, true>>(what, of, host_terms, stream);
    default:
        return no_such_kernel;
    }
}

int launch_owing(const char *what, const gs_cuda_pass_arguments &of, const gs_cuda_term *host_terms, gsync_dtype dtype,
                 gsync_dtype wire, void *stream) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        return launch_owing_from<Float32>(what, of, host_terms, wire, stream);
    case GSYNC_FLOAT16:
        return launch_owing_from<Float16>(what, of, host_terms, wire, stream);
    case GSYNC_BFLOAT16:
        return launch_owing_from<BFloat16>(what, of, host_terms, wire, stream);
    case GSYNC_FLOAT64:
        return launch_owing_from<Float64>(what, of, host_terms, wire, stream);
    default:
        return no_such_kernel;
    }
}

int launch_owing_combine(const gs_cuda_combine_arguments &of, const gs_cuda_term *host_terms, gsync_dtype wire,
                         void *stream) {
    switch (of.blocks.codec) {
    case GS_CUDA_INT8:
        return launch_warps<BlockSum<Int8, true>>("combine", of, host_terms, stream);
    case GS_CUDA_FLOAT8:
        return launch_warps<BlockSum<Float8, true>>("combine", of, host_terms, stream);
    case GS_CUDA_PLAIN:
        break;
    }
    switch (wire) {
    case GSYNC_FLOAT16:
        return launch_tiles<Combine<Float16, true>>("combine", of, host_terms, stream);
    case GSYNC_BFLOAT16:
        return launch_tiles<Combine<BFloat16, true>>("combine", of, host_terms, stream);
    default:
        return no_such_kernel;
    }
}

template <class D> int load_owing() {
    const int result = load_kernel<Encode<D, Float16, true>>();
    return result != 0 ? result : load_kernel<Encode<D, BFloat16, true>>();
}

int load_feedback() {
    const int results[] = {load_owing<Float32>(),
                           load_owing<Float16>(),
                           load_owing<BFloat16>(),
                           load_owing<Float64>(),
                           load_codec<OwingBlockEncode, Int8>(),
                           load_codec<OwingBlockEncode, Float8>(),
                           load_kernel<Combine<Float16, true>>(),
                           load_kernel<Combine<BFloat16, true>>(),
                           load_blocks_kernel<BlockSum<Int8, true>>(),
                           load_blocks_kernel<BlockSum<Float8, true>>(),
                           load_kernel<Settle>(),
                           load_kernel<Fold>()};
    for (const int result : results) {
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

} // namespace

int gs_cuda_kernels_encode(const char *what, const gs_cuda_pass_arguments *arguments, const gs_cuda_term *host_terms,
                           gsync_dtype dtype, gsync_dtype wire, void *stream) {
    const bool owes = arguments->feedback.residuals != NULL;
    if (arguments->blocks.codec != GS_CUDA_PLAIN) {
        return owes ? launch_block_pass<OwingBlockEncode>(what, *arguments, host_terms, dtype, stream)
                    : launch_block_pass<PlainBlockEncode>(what, *arguments, host_terms, dtype, stream);
    }
    return owes ? launch_owing(what, *arguments, host_terms, dtype, wire, stream)
                : launch_pass<PlainEncode>(what, *arguments, host_terms, dtype, wire, stream);
}

int gs_cuda_kernels_decode(const gs_cuda_pass_arguments *arguments, const gs_cuda_term *host_terms, gsync_dtype dtype,
                           gsync_dtype wire, void *stream) {
    if (arguments->blocks.codec != GS_CUDA_PLAIN) {
        return launch_block_pass<BlockDecode>("decode", *arguments, host_terms, dtype, stream);
    }
    return launch_pass<Decode>("decode", *arguments, host_terms, dtype, wire, stream);
}

int gs_cuda_kernels_digest(const gs_cuda_pass_arguments *arguments, const gs_cuda_term *host_terms, gsync_dtype dtype,
                           void *stream) {
    const char *what = "digest";
    switch (dtype) {
    case GSYNC_FLOAT32:
        return launch_tiles<Digest<Float32>>(what, *arguments, host_terms, stream);
    case GSYNC_FLOAT64:
        return launch_tiles<Digest<Float64>>(what, *arguments, host_terms, stream);
    case GSYNC_FLOAT16:
        return launch_tiles<Digest<Float16>>(what, *arguments, host_terms, stream);
    case GSYNC_BFLOAT16:
        return launch_tiles<Digest<BFloat16>>(what, *arguments, host_terms, stream);
    default:
        return no_such_kernel;
    }
}

int gs_cuda_kernels_combine(const gs_cuda_combine_arguments *arguments, const gs_cuda_term *host_terms,
                            gsync_dtype wire, void *stream) {
    if (arguments->feedback.residuals != NULL) {
        return launch_owing_combine(*arguments, host_terms, wire, stream);
    }
    switch (arguments->blocks.codec) {
    case GS_CUDA_INT8:
        return launch_warps<BlockSum<Int8, false>>("combine", *arguments, host_terms, stream);
    case GS_CUDA_FLOAT8:
        return launch_warps<BlockSum<Float8, false>>("combine", *arguments, host_terms, stream);
    case GS_CUDA_PLAIN:
        break;
    }
    switch (wire) {
    case GSYNC_FLOAT32:
        return launch_tiles<Combine<Float32, false>>("combine", *arguments, host_terms, stream);
    case GSYNC_FLOAT64:
        return launch_tiles<Combine<Float64, false>>("combine", *arguments, host_terms, stream);
    case GSYNC_FLOAT16:
        return launch_tiles<Combine<Float16, false>>("combine", *arguments, host_terms, stream);
    case GSYNC_BFLOAT16:
        return launch_tiles<Combine<BFloat16, false>>("combine", *arguments, host_terms, stream);
    default:
        return no_such_kernel;
    }
}

int gs_cuda_kernels_add_shares(const gs_cuda_shares_arguments *arguments, void *stream) {
    return launch_tiles<Shares>("add shares", *arguments, NULL, stream);
}

int gs_cuda_kernels_settle(const gs_cuda_settle_arguments *arguments, void *stream) {
    return launch_tiles<Settle>("settle", *arguments, NULL, stream);
}

int gs_cuda_kernels_fold(const gs_cuda_fold_arguments *arguments, void *stream) {
    return launch_tiles<Fold>("fold", *arguments, NULL, stream);
}

bool gs_cuda_kernels_have_driver(void) {
    return has_driver();
}

int gs_cuda_kernels_load(void) {
    const int results[] = {load_pass<PlainEncode>(),
                           load_pass<Decode>(),
                           load_kernel<Combine<Float32, false>>(),
                           load_kernel<Combine<Float64, false>>(),
                           load_kernel<Combine<Float16, false>>(),
                           load_kernel<Combine<BFloat16, false>>(),
                           load_kernel<Digest<Float32>>(),
                           load_kernel<Digest<Float64>>(),
                           load_kernel<Digest<Float16>>(),
                           load_kernel<Digest<BFloat16>>(),
                           load_codec<PlainBlockEncode, Int8>(),
                           load_codec<PlainBlockEncode, Float8>(),
                           load_codec<BlockDecode, Int8>(),
                           load_codec<BlockDecode, Float8>(),
                           load_blocks_kernel<BlockSum<Int8, false>>(),
                           load_blocks_kernel<BlockSum<Float8, false>>(),
                           load_kernel<Shares>(),
                           load_feedback()};
    for (const int result : results) {
        if (result != 0) {
            return result;
        }
    }
    return 0;
}
