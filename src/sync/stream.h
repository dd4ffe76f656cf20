/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_SYNC_STREAM_H
#define GS_SYNC_STREAM_H

/*
 * The path of one reducer's buckets where gradients lie on a GPU. A launched bucket is queued at once, by the thread
 * that launches it: the library's stream waits for the streams that produced the bucket's gradients, then encodes,
 * reduces and decodes. Nothing is allocated, and no host waits, until a trainer asks for it.
 *
 * The front door sees gs_stream_ops only, because builds without CUDA have none. gs_stream_launch and what follows it
 * in a step is called under the launch lock.
 */

#include "sync/pipeline.h"

#include <pthread.h>

typedef struct gs_stream gs_stream;

/* What is allocated for. */
typedef struct gs_stream_wish {
    const gs_plan_gradient *shapes;
    size_t gradient_count;
    size_t bucket_elements_max; /* of any plan */
    bool has_views;             /* gradients live in the library */
    bool accumulates;           /* GSYNC_CLIENT_OVERWRITES */
    bool is_deterministic;      /* sums in the order of ranks */
    bool finds_unused;
    bool compares_replicas;
    bool checks_writes;
    bool exchanges_refusals;
    int nccl_ctas_max;
    bool allows_shared_device;
    bool registers; /* all gradients live in the library, and NCCL shall know the memory */
    bool has_normal_priority;
} gs_stream_wish;

typedef enum gs_stream_home { GS_STREAM_HOST, GS_STREAM_DEVICE, GS_STREAM_EITHER } gs_stream_home;

typedef struct gs_stream_ops {
    /* Where an address is; *device says on which one, if it is on any. */
    gs_stream_home (*home_of)(const void *address, int *device);
    /* This rank alone, on the device that is current; the pipeline's group and lane may come later. */
    gsync_status (*open)(gs_stream **stream, gs_pipeline *pipeline, const gs_stream_wish *wish);
    int (*device)(const gs_stream *stream);
    /* Collective over the lane. */
    gsync_status (*join)(gs_stream *stream, gs_lane *lane);
    /* Waits a moment for what is queued if has_ended, and then ends it. Some seconds at most. NULL accepted. */
    void (*close)(gs_stream *stream, bool has_ended);
    unsigned char *(*views)(const gs_stream *stream);
    /* Gradients may not leave the library: NCCL wants all ranks to use memory that it knows, or none. */
    bool (*is_registered)(const gs_stream *stream);
    /* The plan is new. */
    void (*lay_out)(gs_stream *stream);
    /* Addresses have changed. */
    void (*moved)(gs_stream *stream);

    /* After so many steps, before another. commits: again. For the others, should they wait in vain. */
    void (*rest)(gs_stream *stream, uint64_t steps, bool commits);

    /* Before gs_pipeline_begin. Reports what went wrong in earlier steps that no host has waited for. step: that the
     * micro-batch ends; 0: none. */
    gsync_status (*begin)(gs_stream *stream, bool starts_window, uint64_t step);
    void (*launch)(gs_stream *stream, size_t bucket_count);
    /* This rank has forgotten a gradient. It takes part all the same, since the others may have launched. */
    void (*refuse)(gs_stream *stream, uint32_t gradient_index);
    /* After the last launch: decides which gradients no rank has used. The others' results are written then.
     * compares: `digests` will be asked for. */
    void (*settle)(gs_stream *stream, bool compares);
    /* After that. looks: findings are wanted. */
    void (*end)(gs_stream *stream, bool looks);
    /* Until everything is through. *is_refused: some rank has refused. */
    gsync_status (*wait)(gs_stream *stream, gs_idle_function idle, void *argument, bool *is_refused);
    size_t (*launched)(const gs_stream *stream);
    /* checks_writes. What the gradient holds when `producer` has done what it has queued so far, or now if that is
     * NULL. Any thread, before the mark counts. */
    void (*note_mark)(gs_stream *stream, pthread_mutex_t *launch_lock, uint32_t gradient_index, void *const *producer);
    /* By gradient: what was noted of those that were marked, and what they hold now. Waits. */
    gsync_status (*compare_marks)(gs_stream *stream, gs_idle_function idle, void *argument, const uint64_t **marked,
                                  const uint64_t **now);
    /* Of every gradient's result in the step that has ended last, by gradient; waits for them if nobody has. */
    gsync_status (*digests)(gs_stream *stream, gs_idle_function idle, void *argument, const uint64_t **digests);

    /* Error feedback, which is kept on the device: when gs_narrow_settle has decided on a step that `wait` was for; */
    void (*settle_feedback)(gs_stream *stream);
    /* and gs_narrow_fold. */
    void (*fold)(gs_stream *stream);
    /* Between steps: bytes of what this rank owes of a gradient; and all of it, gradient by gradient and stage by
     * stage. Save sets *divisor to what gs_narrow_fold wants, where anything is kept. Both wait. */
    size_t (*owed_bytes)(const gs_stream *stream, size_t index, gs_wire_stage stage);
    gsync_status (*save)(gs_stream *stream, void *to, double *divisor);
    gsync_status (*load)(gs_stream *stream, const void *from, double divisor);

    /* is_auto: how long buckets took in the step that has ended last, to wire_choice.c; waits for it. */
    gsync_status (*times)(gs_stream *stream, gs_idle_function idle, void *argument);

    /* The end of a micro-batch that only accumulates. */
    void (*accumulate)(gs_stream *stream, double factor);
    gsync_status (*wait_for_sums)(gs_stream *stream, gs_idle_function idle, void *argument);

    /* Between steps: multiplies all gradients that hold a result, and waits. */
    gsync_status (*scale)(gs_stream *stream, double factor, gs_idle_function idle, void *argument);

    /* Instead of wait: what is launched from now on waits for what another stream has queued so far; */
    void (*follow)(gs_stream *stream, void *other);
    /* that stream waits for what was launched; and no host does: the step's outcome as far as it is known. */
    void (*let_follow)(gs_stream *stream, void *other);
    gsync_status (*leave)(gs_stream *stream);

    /* What the ranks tell each other has failed: adds to its words who is late, if that is known. */
    gsync_status (*explain)(const gs_stream *stream, gsync_status status);
} gs_stream_ops;

/* Defined in builds with CUDA. */
extern const gs_stream_ops gs_stream_cuda;

/* For the calls that only builds with CUDA have. */
gsync_status gs_stream_check_capture(gs_stream *stream, void *other, const char *call);
/* Before a step that no host will wait for. */
gsync_status gs_stream_start_watch(gs_stream *stream);
/* What `producer` has queued so far makes a gradient of the bucket final. Any thread. */
gsync_status gs_stream_note_producer(gs_stream *stream, pthread_mutex_t *launch_lock, size_t bucket, void *producer);

#endif
