/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device_cuda.h"

#include "base/kernels.h"
#include "base/memory.h"
#include "base/wire_format.h"
#include "device/device_cuda_kernels.h"
#include "device/topk_cuda_kernels.h"

#include <cuda_runtime_api.h>

struct gs_cuda {
    int device;
    char bus_id[32];
    int priority_lowest;
    int priority_highest;
    cudaStream_t setup; /* for what happens outside of steps */
};

/* ---- the runtime's errors ---- */

static gsync_status status_of(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation:
        return GSYNC_ERR_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNotSupported:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureImplicit:
        return GSYNC_ERR_UNSUPPORTED;
    default:
        return GSYNC_ERR_TRANSPORT;
    }
}

/* The error is ours to report: the trainer shall not find it with cudaGetLastError. */
static gsync_status check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) {
        return GSYNC_OK;
    }
    (void)cudaGetLastError();
    return gs_fail(status_of(error), "CUDA: %s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* Where nobody could do anything about it. */
static void ignore(cudaError_t error) {
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

/* ---- the current device ---- */

/* Some calls are about the thread's current device, which is the trainer's. -1: nothing has to be set back. */
static gsync_status enter(const gs_cuda *cuda, int *before) {
    int current = -1;
    *before = -1;
    GS_TRY(check(cudaGetDevice(&current), "asking for the current device"));
    if (current != cuda->device) {
        GS_TRY(check(cudaSetDevice(cuda->device), "choosing the reducer's device"));
        *before = current;
    }
    return GSYNC_OK;
}

static void leave(int before) {
    if (before >= 0) {
        ignore(cudaSetDevice(before));
    }
}

/* ---- places ---- */

gs_place gs_cuda_place_of(const void *address, int *device) {
    struct cudaPointerAttributes attributes;
    *device = -1;
    if (!gs_cuda_kernels_have_driver()) {
        return GS_PLACE_HOST;
    }
    const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
    ignore(error);
    const bool is_device = error == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
    const bool is_managed = error == cudaSuccess && attributes.type == cudaMemoryTypeManaged;
    if (is_device || is_managed) {
        *device = attributes.device;
    }
    if (is_managed) {
        return GS_PLACE_MANAGED;
    }
    return is_device ? GS_PLACE_DEVICE : GS_PLACE_HOST;
}

int gs_cuda_visible_count(void) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    ignore(error);
    return error == cudaSuccess ? count : 0;
}

/* ---- a device ---- */

static gsync_status open_device(gs_cuda *cuda) {
    int count = 0;
    GS_TRY(check(cudaGetDeviceCount(&count), "looking for a GPU"));
    GS_TRY(check(cudaGetDevice(&cuda->device), "asking for the current device"));
    GS_TRY(check(cudaDeviceGetPCIBusId(cuda->bus_id, (int)sizeof cuda->bus_id, cuda->device), "asking for a bus id"));
    GS_TRY(check(cudaDeviceGetStreamPriorityRange(&cuda->priority_lowest, &cuda->priority_highest),
                 "asking for stream priorities"));
    GS_TRY(check((cudaError_t)gs_cuda_kernels_load(), "loading kernels"));
    GS_TRY(check((cudaError_t)gs_cuda_topk_load(), "loading kernels"));
    return check(cudaStreamCreateWithFlags(&cuda->setup, cudaStreamNonBlocking), "making a stream");
}

gsync_status gs_cuda_open(gs_cuda **cuda) {
    gs_cuda *opened = NULL;
    GS_TRY(gs_memory_new((void *)&opened, 1, sizeof *opened, "a device"));
    const gsync_status status = open_device(opened);
    if (status != GSYNC_OK) {
        gs_memory_free(opened);
        return status;
    }
    *cuda = opened;
    return GSYNC_OK;
}

void gs_cuda_close(gs_cuda *cuda) {
    if (cuda != NULL) {
        ignore(cudaStreamDestroy(cuda->setup));
        gs_memory_free(cuda);
    }
}

int gs_cuda_device(const gs_cuda *cuda) {
    return cuda->device;
}

const char *gs_cuda_bus_id(const gs_cuda *cuda) {
    return cuda->bus_id;
}

/* ---- streams and events ---- */

gsync_status gs_cuda_stream_new(gs_cuda *cuda, bool has_high_priority, void **stream) {
    const int priority = has_high_priority ? cuda->priority_highest : cuda->priority_lowest;
    cudaStream_t made = NULL;
    int before;
    GS_TRY(enter(cuda, &before));
    const gsync_status status =
        check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority), "making a stream");
    leave(before);
    if (status == GSYNC_OK) {
        *stream = made;
    }
    return status;
}

void gs_cuda_stream_free(gs_cuda *cuda, void *stream) {
    (void)cuda;
    if (stream != NULL) {
        ignore(cudaStreamDestroy(stream));
    }
}

static gsync_status new_event(gs_cuda *cuda, unsigned flags, void **event) {
    cudaEvent_t made = NULL;
    int before;
    GS_TRY(enter(cuda, &before));
    const gsync_status status = check(cudaEventCreateWithFlags(&made, flags), "making an event");
    leave(before);
    if (status == GSYNC_OK) {
        *event = made;
    }
    return status;
}

gsync_status gs_cuda_event_new(gs_cuda *cuda, void **event) {
    return new_event(cuda, cudaEventDisableTiming, event);
}

gsync_status gs_cuda_timer_new(gs_cuda *cuda, void **event) {
    return new_event(cuda, cudaEventDefault, event);
}

gsync_status gs_cuda_elapsed(gs_cuda *cuda, void *from, void *to, uint64_t *ns) {
    const double ns_per_ms = 1e6;
    float ms = 0;
    (void)cuda;
    GS_TRY(check(cudaEventElapsedTime(&ms, from, to), "reading the time between two events"));
    *ns = ms > 0 ? (uint64_t)((double)ms * ns_per_ms) : 0;
    return GSYNC_OK;
}

void gs_cuda_event_free(gs_cuda *cuda, void *event) {
    (void)cuda;
    if (event != NULL) {
        ignore(cudaEventDestroy(event));
    }
}

gsync_status gs_cuda_record(gs_cuda *cuda, void *event, void *stream) {
    (void)cuda;
    return check(cudaEventRecord(event, stream), "recording an event");
}

gsync_status gs_cuda_wait(gs_cuda *cuda, void *stream, void *event) {
    (void)cuda;
    return check(cudaStreamWaitEvent(stream, event, 0), "letting a stream wait for an event");
}

/* Threads of the library ask at any time. While some thread of the trainer captures a graph in the global mode, another
 * that asks would make the capture fail, unless it says that it has nothing to do with it. */
static cudaError_t query_apart(cudaEvent_t event) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    ignore(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudaError_t error = cudaEventQuery(event);
    ignore(cudaThreadExchangeStreamCaptureMode(&mode));
    return error;
}

gsync_status gs_cuda_is_done(gs_cuda *cuda, void *event, bool *is_done) {
    (void)cuda;
    const cudaError_t error = query_apart(event);
    if (error == cudaErrorNotReady) {
        ignore(error);
        *is_done = false;
        return GSYNC_OK;
    }
    GS_TRY(check(error, "looking at an event"));
    *is_done = true;
    return GSYNC_OK;
}

bool gs_cuda_is_each_threads(const void *stream) {
    return stream == (const void *)cudaStreamPerThread;
}

gsync_status gs_cuda_is_capturing(gs_cuda *cuda, void *stream, bool *is_capturing) {
    (void)cuda;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    GS_TRY(check(cudaStreamIsCapturing(stream, &capture), "asking whether a stream is captured"));
    *is_capturing = capture != cudaStreamCaptureStatusNone;
    return GSYNC_OK;
}

/* ---- memory ---- */

static cudaError_t zero_now(const gs_cuda *cuda, void *memory, size_t bytes) {
    const cudaError_t error = cudaMemsetAsync(memory, 0, bytes, cuda->setup);
    return error == cudaSuccess ? cudaStreamSynchronize(cuda->setup) : error;
}

gsync_status gs_cuda_zero_now(gs_cuda *cuda, void *memory, size_t bytes) {
    int before;
    GS_TRY(enter(cuda, &before));
    const gsync_status status = check(zero_now(cuda, memory, bytes), "zeroing memory");
    leave(before);
    return status;
}

static gsync_status new_zeroes(const gs_cuda *cuda, void **memory, size_t bytes, const char *what) {
    void *made = NULL;
    GS_TRY(check(cudaMalloc(&made, bytes), what));
    const cudaError_t error = zero_now(cuda, made, bytes);
    if (error != cudaSuccess) {
        const gsync_status status = check(error, what);
        ignore(cudaFree(made));
        return status;
    }
    *memory = made;
    return GSYNC_OK;
}

gsync_status gs_cuda_new(gs_cuda *cuda, void **memory, size_t bytes, const char *what) {
    int before;
    *memory = NULL;
    if (bytes == 0) {
        return GSYNC_OK;
    }
    GS_TRY(enter(cuda, &before));
    const gsync_status status = new_zeroes(cuda, memory, bytes, what);
    leave(before);
    return status;
}

void gs_cuda_free(gs_cuda *cuda, void *memory) {
    (void)cuda;
    ignore(cudaFree(memory));
}

gsync_status gs_cuda_pinned_new(gs_cuda *cuda, void **memory, size_t bytes, const char *what) {
    int before;
    *memory = NULL;
    if (bytes == 0) {
        return GSYNC_OK;
    }
    GS_TRY(enter(cuda, &before));
    const gsync_status status = check(cudaHostAlloc(memory, bytes, cudaHostAllocPortable), what);
    leave(before);
    if (status == GSYNC_OK) {
        memset(*memory, 0, bytes);
    }
    return status;
}

void gs_cuda_pinned_free(gs_cuda *cuda, void *memory) {
    (void)cuda;
    ignore(cudaFreeHost(memory));
}

gsync_status gs_cuda_copy(gs_cuda *cuda, void *to, const void *from, size_t bytes, void *stream) {
    (void)cuda;
    return bytes == 0 ? GSYNC_OK : check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying");
}

gsync_status gs_cuda_zero(gs_cuda *cuda, void *memory, size_t bytes, void *stream) {
    (void)cuda;
    return bytes == 0 ? GSYNC_OK : check(cudaMemsetAsync(memory, 0, bytes, stream), "clearing memory");
}

/* ---- passes ---- */

gsync_status gs_cuda_launch(gs_cuda *cuda, int (*launcher)(const void *arguments, void *stream), const void *arguments,
                            void *stream, const char *doing) {
    int before;
    GS_TRY(enter(cuda, &before));
    const int error = launcher(arguments, stream);
    leave(before);
    return check((cudaError_t)error, doing);
}

gs_cuda_blocks gs_cuda_blocks_of(gs_cuda_codec codec, size_t count, int ranks) {
    enum { ALIGNMENT = 16 };
    const size_t scale_bytes = codec == GS_CUDA_INT8 ? sizeof(float) : 1;
    const size_t blocks = (count + GS_WIRE_BLOCK - 1) / GS_WIRE_BLOCK;
    const size_t per_part = (blocks + (size_t)ranks - 1) / (size_t)ranks;
    const size_t bytes = per_part * (GS_WIRE_BLOCK + scale_bytes);
    return (gs_cuda_blocks){codec, per_part, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT};
}

static gsync_status check_types(gsync_dtype dtype, gsync_dtype wire) {
    const bool is_known = gs_dtype_is_floating(dtype) && gs_dtype_is_floating(wire);
    if (!is_known || (dtype != GSYNC_FLOAT64 && wire == GSYNC_FLOAT64)) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED, "no kernel turns %s into %s", gs_dtype_name(dtype), gs_dtype_name(wire));
    }
    return GSYNC_OK;
}

static gs_cuda_narrowing narrowing_of(gsync_dtype wire, float scale) {
    const bool is_narrow = scale != 0 && (wire == GSYNC_FLOAT16 || wire == GSYNC_BFLOAT16);
    if (!is_narrow) {
        return (gs_cuda_narrowing){.is_on = false};
    }
    const gs_narrowing how = wire == GSYNC_FLOAT16 ? gs_half_narrowing(scale) : gs_bfloat_narrowing();
    return (gs_cuda_narrowing){.is_on = true,
                               .scale = how.scale,
                               .inverse = 1.0f / how.scale,
                               .flushed_most = how.flushed_most,
                               .end = how.end};
}

static gs_cuda_pass_arguments arguments_of(const gs_cuda_pass *pass, void *bucket, const double *divisor) {
    return (gs_cuda_pass_arguments){.terms = pass->term_count == 0 ? NULL : pass->terms,
                                    .term_count = pass->term_count,
                                    .brings = pass->brings,
                                    .used = pass->used,
                                    .count = pass->count,
                                    .bucket = bucket,
                                    .factor = pass->factor,
                                    .divisor = divisor,
                                    .narrowing = narrowing_of(pass->wire, pass->scale),
                                    .results = pass->results,
                                    .blocks = pass->blocks,
                                    .random = pass->random,
                                    .feedback = pass->feedback,
                                    .notebook = pass->notebook};
}

gsync_status gs_cuda_encode(gs_cuda *cuda, const gs_cuda_pass *pass, void *bucket, void *stream) {
    const gs_cuda_pass_arguments arguments = arguments_of(pass, bucket, NULL);
    int before;
    GS_TRY(check_types(pass->dtype, pass->wire));
    GS_TRY(enter(cuda, &before));
    const int error = gs_cuda_kernels_encode("encode", &arguments, pass->host_terms, pass->dtype, pass->wire, stream);
    leave(before);
    return check((cudaError_t)error, "launching the encoding of a bucket");
}

gsync_status gs_cuda_decode(gs_cuda *cuda, const gs_cuda_pass *pass, const void *bucket, void *stream) {
    const gs_cuda_pass_arguments arguments = arguments_of(pass, (void *)bucket, pass->divisor);
    int before;
    GS_TRY(check_types(pass->dtype, pass->wire));
    GS_TRY(enter(cuda, &before));
    const int error = gs_cuda_kernels_decode(&arguments, pass->host_terms, pass->dtype, pass->wire, stream);
    leave(before);
    return check((cudaError_t)error, "launching the decoding of a bucket");
}

gsync_status gs_cuda_combine(gs_cuda *cuda, const gs_cuda_combination *combination, void *stream) {
    const gs_cuda_combine_arguments arguments = {.parts = combination->parts,
                                                 .ranks = combination->ranks,
                                                 .shares = combination->shares,
                                                 .stride = combination->stride,
                                                 .shard = combination->shard,
                                                 .count = combination->count,
                                                 .divisor = combination->divisor,
                                                 .narrowing = narrowing_of(combination->wire, combination->scale),
                                                 .results = combination->results,
                                                 .blocks = combination->blocks,
                                                 .feedback = combination->feedback,
                                                 .terms = combination->terms,
                                                 .term_count = combination->term_count,
                                                 .first = combination->first,
                                                 .notebook = combination->notebook};
    int before;
    GS_TRY(check_types(combination->wire, combination->wire));
    GS_TRY(enter(cuda, &before));
    const int error = gs_cuda_kernels_combine(&arguments, combination->host_terms, combination->wire, stream);
    leave(before);
    return check((cudaError_t)error, "launching the sum of a shard");
}

gsync_status gs_cuda_accumulate(gs_cuda *cuda, void *accumulator, const gs_cuda_term *term, gsync_dtype dtype,
                                double factor, bool starts, void *stream) {
    gs_cuda_pass_arguments arguments = {
        .only = *term, .term_count = 1, .count = term->rows * term->columns, .bucket = accumulator, .factor = factor};
    arguments.only.accumulator = starts ? NULL : accumulator;
    arguments.only.offset = 0;
    int before;
    GS_TRY(check_types(dtype, dtype));
    GS_TRY(enter(cuda, &before));
    const int error =
        gs_cuda_kernels_encode("accumulate", &arguments, &arguments.only, dtype, gs_dtype_wide(dtype), stream);
    leave(before);
    return check((cudaError_t)error, "launching an accumulation");
}

static gsync_status launch_digest(gs_cuda *cuda, const gs_cuda_pass_arguments *arguments,
                                  const gs_cuda_term *host_terms, gsync_dtype dtype, void *stream) {
    int before;
    GS_TRY(check_types(dtype, dtype));
    GS_TRY(enter(cuda, &before));
    const int error = gs_cuda_kernels_digest(arguments, host_terms, dtype, stream);
    leave(before);
    return check((cudaError_t)error, "launching a digest");
}

gsync_status gs_cuda_digest(gs_cuda *cuda, const gs_cuda_pass *pass, uint64_t *digests, void *stream) {
    const gs_cuda_pass_arguments arguments = {
        .terms = pass->terms, .term_count = pass->term_count, .count = pass->count, .digests = digests};
    return launch_digest(cuda, &arguments, pass->host_terms, pass->dtype, stream);
}

gsync_status gs_cuda_digest_one(gs_cuda *cuda, const gs_cuda_term *term, gsync_dtype dtype, uint64_t *digest,
                                void *stream) {
    gs_cuda_pass_arguments arguments = {
        .only = *term, .term_count = 1, .count = term->rows * term->columns, .digests = digest};
    arguments.only.offset = 0;
    return launch_digest(cuda, &arguments, &arguments.only, dtype, stream);
}

gsync_status gs_cuda_add_shares(gs_cuda *cuda, const gs_cuda_share *shares, int ranks, gs_cuda_divide divide,
                                double factor, double *divisor, void *stream) {
    const gs_cuda_shares_arguments arguments = {
        .shares = shares, .ranks = ranks, .divide = divide, .factor = factor, .divisor = divisor, .count = 1};
    int before;
    GS_TRY(enter(cuda, &before));
    const int error = gs_cuda_kernels_add_shares(&arguments, stream);
    leave(before);
    return check((cudaError_t)error, "launching the sum of the ranks' shares");
}

gsync_status gs_cuda_settle(gs_cuda *cuda, const gs_cuda_settlement *settlement, void *stream) {
    const gs_cuda_settle_arguments arguments = {.settlement = *settlement, .count = settlement->term_count};
    int before;
    GS_TRY(enter(cuda, &before));
    const int error = gs_cuda_kernels_settle(&arguments, stream);
    leave(before);
    return check((cudaError_t)error, "launching what settles error feedback");
}

gsync_status gs_cuda_fold(gs_cuda *cuda, const gs_cuda_folding *folding, size_t count, void *stream) {
    const gs_cuda_fold_arguments arguments = {.folding = *folding, .count = count};
    int before;
    GS_TRY(enter(cuda, &before));
    const int error = gs_cuda_kernels_fold(&arguments, stream);
    leave(before);
    return check((cudaError_t)error, "launching what folds error feedback");
}
