/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_API_REDUCER_H
#define GS_API_REDUCER_H

#include "api/comm.h"
#include "api/index_map.h"
#include "api/scaler.h"
#include "plan/launch_order.h"
#include "sync/stream.h"

typedef enum gs_reducer_stage {
    GS_REDUCER_OPEN,  /* gradients are being added, or commit has to be called again */
    GS_REDUCER_IDLE,  /* between micro-batches */
    GS_REDUCER_ARMED, /* between begin and finish */
    GS_REDUCER_FAILED /* can only be destroyed */
} gs_reducer_stage;

struct gsync_reducer {
    gsync_comm *comm;
    gsync_options options;
    _Atomic int stage; /* gs_reducer_stage; read by gsync_ready on any thread */
    bool was_committed;

    /* The gradients, in order of registration. */
    gs_gradient *gradients;
    gs_plan_gradient *shapes;
    size_t gradient_count;
    size_t gradient_capacity;
    size_t shape_capacity;
    gs_index_map addresses;
    gs_index_map names;
    bool has_views;
    bool has_views_anywhere; /* on any rank: lanes and plans follow from it, and have to be the same on all */
    bool has_shared_weights; /* gradients with several uses */

    /* The plan and what follows it. */
    gs_bucket_plan plan;
    gs_ready_ledger ledger;
    gs_launch_order launch;
    pthread_mutex_t launch_lock; /* held only while it is decided which buckets go */
    gs_pipeline pipeline;
    gs_stream *stream; /* the path of buckets on a GPU; NULL: gradients are on the host */
    const gs_stream_ops *stream_ops;
    void *consumer;       /* in gsync_finish_on: this stream waits, and the host does not */
    unsigned char *views; /* where library-owned gradients live when not in the slots */
    void **places;        /* gradient_count: room for rebinding */
    uint32_t *order;      /* 2 x gradient_count: the planned order, and room for an observed one */
    bool observes_order;  /* no order has been agreed yet */
    bool owes_order;      /* gsync_finish_on has ended the step of which the ranks still have to agree on the order */
    bool owes_times;      /* and read how long its buckets took */
    bool owes_replicas;   /* and which they still have to compare */
    bool has_consumer;    /* in gsync_finish_on */
    bool has_waited;      /* the host, for the last step's results on a GPU */

    /* The window and the step. */
    gsync_phase phase;
    uint32_t window_micro_batches;
    double window_weight;
    double micro_weight;
    bool lacks_weight; /* WEIGHTED_MEAN: gsync_set_weight has not been called in this micro-batch */
    uint64_t step;     /* synchronised windows so far */
    bool is_synced;
    bool has_finished;     /* at least one micro-batch */
    uint32_t default_rule; /* of pipeline.wires: for gradients without a rule of their own */
    bool needs_findings;   /* something travels on a narrow wire: see gs_pipeline_terms.looks */
    bool has_open_window;  /* the scaler has been told of it */
    gsync_scaler *scaler;  /* NULL: none; the trainer's */
    gsync_step_info info;  /* of the last finish */
    uint64_t clipped_step; /* the last one whose result was scaled by gsync_clip_grad_norm, and its norm since */
    double clipped_norm;
};

/* Wire and placement rules that follow from the options. */
static inline bool gs_reducer_overwrites(const gsync_reducer *reducer) {
    return reducer->options.accumulation == GSYNC_CLIENT_OVERWRITES;
}

/* On the host results are held back until the ranks have agreed; on a GPU only those that somebody may not have used.
 */
static inline bool gs_reducer_is_deferred(const gsync_reducer *reducer) {
    return reducer->stream == NULL && (reducer->options.finds_unused != 0 || reducer->options.checks_writes != 0);
}

/* After that step. */
static inline bool gs_reducer_compares_replicas(const gsync_reducer *reducer, uint64_t step) {
    const uint32_t interval = reducer->options.replica_check_interval;
    return interval != 0 && step % interval == 0;
}

/* The host knows which gradients the last step's ranks have used. */
static inline bool gs_reducer_knows_used(const gsync_reducer *reducer) {
    return reducer->stream == NULL || reducer->has_waited;
}

static inline gs_reducer_stage gs_reducer_get_stage(const gsync_reducer *reducer) {
    return (gs_reducer_stage)atomic_load_explicit(&reducer->stage, memory_order_acquire);
}

static inline void gs_reducer_set_stage(gsync_reducer *reducer, gs_reducer_stage stage) {
    atomic_store_explicit(&reducer->stage, (int)stage, memory_order_release);
}

/* Whom a failure of this reducer is reported to. */
static inline const gsync_comm *gs_reducer_comm(const gsync_reducer *reducer) {
    return reducer != NULL ? reducer->comm : NULL;
}

/* After such a failure the reducer can only be destroyed: gsync_status lists those that say so last. */
static inline bool gs_status_is_for_good(gsync_status status) {
    return status <= GSYNC_ERR_TIMEOUT;
}

/* GSYNC_OK if the handle is usable and its stage is `wanted`. */
gsync_status gs_reducer_check(const gsync_reducer *reducer, gs_reducer_stage wanted, const char *call);
/* Likewise, if no micro-batch is under way: before or after commit. */
gsync_status gs_reducer_check_between_steps(const gsync_reducer *reducer, const char *call);

/* The next gsync_begin starts a window. */
void gs_reducer_close_window(gsync_reducer *reducer);

/* Index of a name, GS_NO_INDEX if there is none. */
uint32_t gs_reducer_find(const gsync_reducer *reducer, const char *name);

/* Enters the addresses of all gradients anew. Cannot fail after a reserve. */
void gs_reducer_index_addresses(gsync_reducer *reducer);

/* place.c */
/* Where the gradients are; opens the stream if they are on a GPU. Alone. */
gsync_status gs_reducer_find_place(gsync_reducer *reducer);
/* Collective: its part of NCCL. own: this rank's outcome so far. */
gsync_status gs_reducer_join_stream(gsync_reducer *reducer);
void gs_reducer_close_stream(gsync_reducer *reducer);
/* Addresses have changed. */
void gs_reducer_note_moves(gsync_reducer *reducer);
/* A gradient may move to `place`. */
gsync_status gs_reducer_check_home(const gsync_reducer *reducer, uint32_t index, const void *place);

/* step.c */
/* What a mark at this address is for; GS_NO_INDEX: for nothing, and that is right. */
gsync_status gs_reducer_find_marked(const gsync_reducer *reducer, const void *grad, const char *call, uint32_t *index);
/* producer: the stream whose work makes the gradient final; NULL: the host has waited. */
gsync_status gs_reducer_mark(gsync_reducer *reducer, uint32_t index, void *const *producer);
gsync_status gs_reducer_check_weight(const gsync_reducer *reducer, const char *call);
/* gsync_finish, by the name of `call`. */
gsync_status gs_reducer_finish(gsync_reducer *reducer, gsync_step_info *info, const char *call);
bool gs_reducer_is_missing(const gsync_reducer *reducer, uint32_t index);
/* The names of gradients that were never marked. */
void gs_reducer_list_missing(const gsync_reducer *reducer, char *names, size_t size);

/* accumulate.c */
gsync_status gs_step_accumulate(gsync_reducer *reducer);

/* step_device.c: the parts of a step that differ for gradients on a GPU */
gsync_status gs_step_device_begin(gsync_reducer *reducer, gsync_phase phase);
/* Under the launch lock. Whether somebody has to make progress then: all are launched, and the ranks agree on the
 * order. */
bool gs_step_device_launch(gsync_reducer *reducer, size_t bucket_count);
/* Between steps, of which the count may be another one now. commits: again. */
void gs_step_device_rest(const gsync_reducer *reducer, bool commits);
/* What the ranks have still to tell each other of a step that no host has waited for. */
gsync_status gs_step_device_catch_up(gsync_reducer *reducer);
/* Launches what is left; waits for all of it and for what the ranks tell each other, or lets the consumer wait. */
gsync_status gs_step_device_finish(gsync_reducer *reducer, bool may_refuse);
/* checks_writes: remembers what the marked gradient holds; and GSYNC_ERR_CHANGED if this rank has written one since. */
void gs_step_device_note_mark(gsync_reducer *reducer, uint32_t index, void *const *producer);
gsync_status gs_step_device_check_writes(gsync_reducer *reducer);
/* Of the last step, which no host may have waited for. */
gsync_status gs_step_device_check_replicas(gsync_reducer *reducer);
/* GSYNC_CLIENT_OVERWRITES: adds the micro-batch to what the window holds. */
gsync_status gs_step_device_accumulate(gsync_reducer *reducer);

/* commit_compare.c: collective over the lane. own: whether this rank got ready for it. */
gsync_status gs_commit_compare(gsync_reducer *reducer, gs_lane *lane, gsync_status own);
/* Of the gradients, as they are compared. */
uint64_t gs_commit_digest(const gsync_reducer *reducer);

/* wire.c */
gsync_status gs_reducer_enter_rule(gsync_reducer *reducer, const gs_wire_rule *rule, uint32_t *index);
/* Before planning: which gradient travels how. */
gsync_status gs_reducer_apply_wires(gsync_reducer *reducer);
/* When it is known where gradients are: those on a GPU keep theirs there, see gs_stream_ops. */
gsync_status gs_reducer_allocate_residuals(gsync_reducer *reducer);
void gs_reducer_free_residuals(gsync_reducer *reducer);
/* Before another plan: gs_narrow_fold. */
void gs_reducer_fold(gsync_reducer *reducer);

/* agree_order.c: after the first synchronised step, which brought rank 0's ready order to all ranks. */
gsync_status gs_reducer_take_order(gsync_reducer *reducer);
/* Plans by reducer->order. */
void gs_reducer_plan_anew(gsync_reducer *reducer);

/* commit.c */
/* Of any plan over the gradients. */
size_t gs_reducer_bucket_elements_max(const gsync_reducer *reducer);
/* Frees what commit has allocated for the plan. */
void gs_reducer_free_plan(gsync_reducer *reducer);
void gs_reducer_plan(gsync_reducer *reducer);
/* Places the buckets of the present plan. */
void gs_reducer_lay_out(gsync_reducer *reducer);

#endif
