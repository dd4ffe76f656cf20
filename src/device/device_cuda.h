/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_DEVICE_CUDA_H
#define GS_DEVICE_DEVICE_CUDA_H

/*
 * Memory, streams, events and passes over gradients on one GPU. The CUDA runtime is spoken to here and in the launchers
 * of device_cuda_kernels.cu only; streams and events are void * elsewhere. Every function leaves the calling thread's
 * current device as it was, and touches no default stream.
 */

#include "base/fail.h"
#include "device/tensor.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum gs_place { GS_PLACE_HOST, GS_PLACE_DEVICE, GS_PLACE_MANAGED } gs_place;

/* Where memory is, and on which device (host: -1). Host where there is no GPU, no driver, or the runtime does not know
 * it; page-locked memory of the host is the host's. */
gs_place gs_cuda_place_of(const void *address, int *device);

/* How many devices this process may use, which CUDA_VISIBLE_DEVICES decides before the runtime counts. 0 where there is
 * no GPU or no driver. */
int gs_cuda_visible_count(void);

/* The device that a launcher's local_rank stands for: ranks of one host go round the visible devices. -1: there is
 * none. It only names one; nothing here makes a device current. */
static inline int gs_cuda_device_for(int local_rank, int visible_count) {
    return visible_count > 0 && local_rank >= 0 ? local_rank % visible_count : -1;
}

typedef struct gs_cuda gs_cuda; /* one device, as one reducer or communicator uses it */

/* Of the device that is current. GSYNC_ERR_UNSUPPORTED, with the driver's words, where there is none. Loads every
 * kernel at once: a first launch in the middle of a step could wait for the device. */
gsync_status gs_cuda_open(gs_cuda **cuda);
void gs_cuda_close(gs_cuda *cuda);
int gs_cuda_device(const gs_cuda *cuda);
const char *gs_cuda_bus_id(const gs_cuda *cuda);

gsync_status gs_cuda_stream_new(gs_cuda *cuda, bool has_high_priority, void **stream); /* non-blocking */
void gs_cuda_stream_free(gs_cuda *cuda, void *stream);
gsync_status gs_cuda_event_new(gs_cuda *cuda, void **event); /* without timing */
gsync_status gs_cuda_timer_new(gs_cuda *cuda, void **event); /* an event with timing */
void gs_cuda_event_free(gs_cuda *cuda, void *event);
gsync_status gs_cuda_record(gs_cuda *cuda, void *event, void *stream);
gsync_status gs_cuda_wait(gs_cuda *cuda, void *stream, void *event);
/* Never waits. */
gsync_status gs_cuda_is_done(gs_cuda *cuda, void *event, bool *is_done);
/* Between what two timers were recorded behind, which is done. */
gsync_status gs_cuda_elapsed(gs_cuda *cuda, void *from, void *to, uint64_t *ns);
/* The handle that stands for another stream in every thread. */
bool gs_cuda_is_each_threads(const void *stream);
gsync_status gs_cuda_is_capturing(gs_cuda *cuda, void *stream, bool *is_capturing);

/* Outside steps only: allocation may wait for the device. Zero at first. pinned: on the host, for copies. */
gsync_status gs_cuda_new(gs_cuda *cuda, void **memory, size_t bytes, const char *what);
void gs_cuda_free(gs_cuda *cuda, void *memory);
gsync_status gs_cuda_pinned_new(gs_cuda *cuda, void **memory, size_t bytes, const char *what);
void gs_cuda_pinned_free(gs_cuda *cuda, void *memory);
gsync_status gs_cuda_copy(gs_cuda *cuda, void *to, const void *from, size_t bytes, void *stream);
gsync_status gs_cuda_zero(gs_cuda *cuda, void *memory, size_t bytes, void *stream);
/* The same, and waits. Outside steps only. */
gsync_status gs_cuda_zero_now(gs_cuda *cuda, void *memory, size_t bytes);

/* What one gradient brings into a bucket, and where its result goes: as gs_host_term, in device memory. */
typedef struct gs_cuda_term {
    void *data; /* NULL: nothing is brought; the result goes nowhere */
    const void *accumulator;
    size_t rows;
    size_t columns;
    size_t row_pitch;
    size_t offset;   /* of its first element in the bucket */
    uint64_t number; /* of the gradient: random numbers follow from it */
} gs_cuda_term;

/* What passes notice. Zero bits: nothing so far. */
typedef struct gs_cuda_findings {
    double square_sum;    /* decode, combine: of results as they are stored, in float64 */
    uint32_t absmax_bits; /* encode: the largest finite magnitude of what is sent, as the bits of a float32 */
    uint32_t has_nonfinite;
    uint64_t first_nonfinite; /* the first such element of the bucket or shard */
    uint64_t saturated;
    uint64_t flushed;
} gs_cuda_findings;

enum { GS_CUDA_BLOCKS_MAX = 432 };

/*
 * What kernels add to, in device memory that was zero at first. One stream's passes at a time. The order in which
 * squares are added follows from the number of elements alone, not from the device nor from chance: equal buckets give
 * equal bits everywhere. Read it back as far as `found` goes.
 */
typedef struct gs_cuda_notebook {
    gs_cuda_findings found;
    uint32_t has_nonfinite; /* so had some pass since somebody set this to 0 */
    uint32_t blocks_done;   /* what follows belongs to the kernel that runs */
    gs_cuda_findings partial[GS_CUDA_BLOCKS_MAX];
} gs_cuda_notebook;

/*
 * FLOAT16: results are smaller than contributions by what divides, which perhaps only the device knows, so they have a
 * scale of their own: `scale` times the largest power of two up to *divisor / usual, within GS_HALF_EXPONENT_MIN
 * and MAX. Where *divisor is not greater than 0 it is `scale`.
 */
typedef struct gs_cuda_result_scale {
    const double *divisor; /* device memory; NULL: results have the scale of contributions */
    double usual;
    float scale; /* a power of two */
} gs_cuda_result_scale;

/*
 * A bucket of 8 bits an element, in parts of so many blocks of GS_WIRE_BLOCK elements: the codes of all blocks, and
 * then their scales, as codec_int8.c and codec_float8.c make them. Every gradient begins with a block.
 */
typedef enum gs_cuda_codec { GS_CUDA_PLAIN, GS_CUDA_INT8, GS_CUDA_FLOAT8 } gs_cuda_codec;

typedef struct gs_cuda_blocks {
    gs_cuda_codec codec; /* PLAIN: there are none */
    size_t per_part;
    size_t part_bytes; /* a multiple of 16 */
} gs_cuda_blocks;

/* INT8: rounded up or down at random, by numbers that follow from a hash of seed, step and rank, from the gradient's
 * and from the element's. */
typedef struct gs_cuda_randomness {
    bool is_on;
    uint64_t prefix;
} gs_cuda_randomness;

/* For a bucket of so many elements that ranks share: each has a part of equal length. */
gs_cuda_blocks gs_cuda_blocks_of(gs_cuda_codec codec, size_t count, int ranks);

enum { GS_CUDA_BRINGS_DATA = 1, GS_CUDA_BRINGS_ACCUMULATOR = 2 };

/*
 * Error feedback: what one rank owes of one gradient, in float32 and in units of the gradient, its elements one behind
 * the other. A pass reads the valid side and writes the other one, which becomes valid when it is certain that the step
 * counts: gs_cuda_settle. Tables of these are in device memory, in the order of the terms' numbers, with a copy on the
 * host in which only `sides` holds.
 */
typedef struct gs_cuda_residual {
    float *sides[2]; /* NULL: none is kept */
    uint32_t valid;
} gs_cuda_residual;

/* Whether a pass adds what is owed before it rounds, and writes what rounding loses. */
typedef struct gs_cuda_feedback {
    const gs_cuda_residual *residuals;      /* of every gradient of the pass, in device memory; NULL: there is none */
    const gs_cuda_residual *host_residuals; /* the same on the host; read during the call only */
    float unit;                             /* of what is rounded: the loss scale, or 1 */
} gs_cuda_feedback;

/* One pass over a bucket: everything one kernel does. */
typedef struct gs_cuda_pass {
    const gs_cuda_term *terms;      /* in device memory, in the order of their offsets; not overlapping */
    const gs_cuda_term *host_terms; /* the same on the host; read during the call only */
    size_t term_count;
    /* Of every term, in device memory; NULL: all. encode: what is brought of it, GS_CUDA_BRINGS_*. decode: 0: its data
     * stays as it is, though the result is looked at. */
    const uint8_t *brings;
    const float *used;
    size_t count;          /* elements of the bucket, with what fills up blocks */
    gsync_dtype dtype;     /* of the gradients */
    gsync_dtype wire;      /* of the bucket's elements */
    double factor;         /* encode: gradients count this often. decode: results are multiplied by it */
    const double *divisor; /* decode: device memory; NULL: 1. By a quotient that is rounded once */
    /* 0: the bucket is in the gradients' own type, or in a wider one. Otherwise it is a narrow wire: rounded as by
     * gs_codec_float16 or gs_codec_bfloat16 (saturating), FLOAT16 after multiplication with this power of two. */
    float scale;
    gs_cuda_result_scale results; /* decode, of a narrow wire */
    gs_cuda_blocks blocks;        /* not PLAIN: wire and scale say nothing; there is no divisor, and decode no factor */
    gs_cuda_randomness random;    /* encode, of blocks */
    gs_cuda_feedback feedback;    /* encode, of a narrow wire or of blocks */
    gs_cuda_notebook *notebook;   /* NULL: nothing is looked for */
} gs_cuda_pass;

/*
 * bucket = the terms; and terms' data = the bucket. Each reads and writes every element once, so the bucket may be the
 * terms' own memory where both have elements of one size, and an accumulator may be the bucket's: encode with the wide
 * type as wire then accumulates. A divisor of 0 makes the result zero, whatever the bucket holds.
 *
 * The bits are those of gs_host_gather, of gs_shard_reduce over one source, and of gs_host_scatter and gs_host_scale;
 * on a narrow wire those of the codec. Where nothing is computed NaNs stay as they are; arithmetic makes one of all.
 * Memory aligned to 16 bytes is read and written 16 bytes at a time. FLOAT64 has any wire, and is rounded to float32 on
 * the way to one that is not its own; only FLOAT64 has the wire FLOAT64.
 */
gsync_status gs_cuda_encode(gs_cuda *cuda, const gs_cuda_pass *pass, void *bucket, void *stream);
gsync_status gs_cuda_decode(gs_cuda *cuda, const gs_cuda_pass *pass, const void *bucket, void *stream);

/* What a rank brings into a step, besides gradients. */
typedef struct gs_cuda_share {
    double weight;
    uint32_t micro_batches;
    uint32_t contributes; /* 0: it counts for nothing */
    uint64_t words[6];    /* not for the device */
} gs_cuda_share;

/* The sum of one rank's shard of a bucket. What is named as in gs_cuda_pass is what it is there. */
typedef struct gs_cuda_combination {
    const void *parts; /* of all ranks, `stride` elements apart */
    int ranks;
    const gs_cuda_share *shares; /* of all ranks: who contributes nothing is left out. NULL: all contribute */
    size_t stride;
    void *shard; /* perhaps one of the parts */
    size_t count;
    gsync_dtype wire;
    const double *divisor;
    float scale;
    gs_cuda_result_scale results;
    gs_cuda_blocks blocks;          /* not PLAIN: the parts' strides and the shard's place are as it says */
    gs_cuda_feedback feedback;      /* of a narrow wire or of blocks; nothing is owed or lost where 0 divides */
    const gs_cuda_term *terms;      /* with it: the bucket's, of which only the shape counts */
    const gs_cuda_term *host_terms; /* as in gs_cuda_pass */
    size_t term_count;
    size_t first; /* the shard's first element in the bucket */
    gs_cuda_notebook *notebook;
} gs_cuda_combination;

/* shard[k] = (sum over ranks, in their order, of parts[rank * stride + k]) / divisor: of elements of wire type, summed
 * in float32 (float64 for float64), rounded once to wire type. */
gsync_status gs_cuda_combine(gs_cuda *cuda, const gs_cuda_combination *combination, void *stream);

/*
 * digests[i] += a number for what term i's data holds, in device memory: the same wherever it lies and in whichever
 * bucket. Of the pass terms, term_count, count and dtype are looked at. The second is of one term alone.
 */
gsync_status gs_cuda_digest(gs_cuda *cuda, const gs_cuda_pass *pass, uint64_t *digests, void *stream);
gsync_status gs_cuda_digest_one(gs_cuda *cuda, const gs_cuda_term *term, gsync_dtype dtype, uint64_t *digest,
                                void *stream);

enum { GS_CUDA_WROTE_CONTRIBUTION = 1, GS_CUDA_WROTE_RESULT = 2 };

/* Whose other sides become valid: of all that were written, where something divides and nothing was inf or NaN. All
 * pointers are to device memory but for the host's copies. */
typedef struct gs_cuda_settlement {
    gs_cuda_residual *contributions; /* by the terms' numbers */
    gs_cuda_residual *results;
    size_t residual_count; /* of each of the two */
    const gs_cuda_term *terms;
    size_t term_count;
    const uint8_t *written;        /* of every term, GS_CUDA_WROTE_* */
    const float *used;             /* of every term: 0: no rank has used it, so nothing arrived. NULL: all are used */
    const uint32_t *has_nonfinite; /* not 0: the step does not count. NULL: it does */
    const double *divisor;         /* of the step, with its loss scale */
    double loss_scale;
    double *kept_divisor; /* of the last such step that counted, without it: written */
} gs_cuda_settlement;

gsync_status gs_cuda_settle(gs_cuda *cuda, const gs_cuda_settlement *settlement, void *stream);

/* What is owed of results becomes owed as a contribution, times the divisor. */
typedef struct gs_cuda_folding {
    gs_cuda_residual *contribution; /* in device memory, and as the host knows them */
    gs_cuda_residual *result;
    const gs_cuda_residual *host_contribution;
    const gs_cuda_residual *host_result;
    const double *divisor; /* in device memory */
} gs_cuda_folding;

gsync_status gs_cuda_fold(gs_cuda *cuda, const gs_cuda_folding *folding, size_t count, void *stream);

typedef enum gs_cuda_divide {
    GS_CUDA_DIVIDE_WINDOW,        /* by the most micro-batches that a rank has */
    GS_CUDA_DIVIDE_PARTICIPANTS,  /* by the number of ranks that contribute */
    GS_CUDA_DIVIDE_MICRO_BATCHES, /* by the sum of theirs */
    GS_CUDA_DIVIDE_WEIGHT         /* by the sum of their weights, in the order of ranks */
} gs_cuda_divide;

/* divisor[0] = what the shares of all ranks, in device memory like it, come to, times factor. One small kernel. */
gsync_status gs_cuda_add_shares(gs_cuda *cuda, const gs_cuda_share *shares, int ranks, gs_cuda_divide divide,
                                double factor, double *divisor, void *stream);

/* accumulator = (starts ? 0 : accumulator) + factor * data, in the wide type. */
gsync_status gs_cuda_accumulate(gs_cuda *cuda, void *accumulator, const gs_cuda_term *term, gsync_dtype dtype,
                                double factor, bool starts, void *stream);

#endif
