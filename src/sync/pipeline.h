/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_SYNC_PIPELINE_H
#define GS_SYNC_PIPELINE_H

/*
 * The path of one reducer's buckets: encode, combine, decode, one bucket in flight, in plan order. The front door
 * launches buckets; whoever makes progress (the helper thread, or a caller) moves them. All functions but
 * gs_pipeline_launch and the readers at the end are called with the engine's work lock held, or between steps.
 */

#include "collective/lane.h"
#include "device/device_host.h"
#include "plan/ready_ledger.h"
#include "sync/sparse.h"

/*
 * Error feedback: what rounding lost of each element, in units of the unscaled gradient. There are two, of which one is
 * valid: a step writes the other, which becomes valid when it is certain that the step counts.
 */
typedef struct gs_residual {
    float *sides[2]; /* NULL: none is kept */
    uint8_t valid;
    bool is_written; /* in this step, the other side */
} gs_residual;

/* One registered gradient. */
typedef struct gs_gradient {
    char *name;
    gs_tensor tensor; /* where the trainer has it; data NULL: in the library's bucket, at view */
    void *view;       /* its place in the library's memory, if it was registered without an address */
    bool has_view;
    void *accumulator; /* GSYNC_CLIENT_OVERWRITES: the window's sum so far, in the wide type */
    bool has_accumulated;
    bool is_hashed; /* checks_writes: since it was marked ready */
    uint64_t hash;
    bool is_used_anywhere; /* finds_unused: in the last synchronised window, by any rank */
    uint32_t rule;         /* has_rule: of gs_pipeline.wires, whether it covers the gradient or not */
    bool has_rule;
    bool carries_momentum;
    gs_residual residuals[2]; /* by gs_wire_stage */
} gs_gradient;

/* is_auto: the shortest time of a bucket each way, and which way it goes. */
typedef struct gs_choice {
    uint64_t native_ns; /* UINT64_MAX: not tried yet */
    uint64_t narrow_ns;
    bool is_native;
    bool is_made;
} gs_choice;

/* What does not change between commits. */
typedef struct gs_pipeline_terms {
    gs_divide divide;
    bool divides_by_micro_batches;
    bool compares_micro_batches;
    bool finds_unused;
    bool checks_writes;
    bool sums_wide;   /* the wire carries the wide type: the library accumulates 16-bit gradients in float32 */
    bool is_deferred; /* results are written to gradients in gs_pipeline_settle, not bucket by bucket */
    bool looks;       /* the ranks tell each other what they noticed: gs_pipeline.findings */
} gs_pipeline_terms;

/* What all ranks together noticed in one step. */
typedef struct gs_step_findings {
    bool has_nonfinite;
    int rank;          /* whose; -1: finite gradients overflowed when they were added up */
    uint32_t gradient; /* the one that comes first in the plan */
    size_t bucket;     /* and where it is */
    size_t element;
    double square_sum; /* of all results */
    float absmax;      /* of all contributions to FLOAT16 buckets */
    uint64_t saturated;
    uint64_t flushed;
} gs_step_findings;

/* What this rank brings into one step. */
typedef struct gs_step_terms {
    uint64_t step;
    uint32_t micro_batches;
    double weight;     /* of the window */
    double factor;     /* this micro-batch's gradients count this often */
    double loss_scale; /* results are divided by it, once, together with the mean's divisor */
    bool contributes;  /* false: zeros */
    bool has_gradient; /* false: only what earlier micro-batches accumulated */
    bool wants_order;  /* the ranks take over the order in which gradients become ready on rank 0 */
    bool ends_early;   /* this rank ran out of data: its window may be shorter than the others' */
} gs_step_terms;

/* What the ranks still tell each other once the buckets are through, in this order, or refused. */
typedef enum gs_epilogue {
    GS_EPILOGUE_NONE,
    GS_EPILOGUE_FINDINGS, /* what each has noticed */
    GS_EPILOGUE_CHOICE,   /* how long buckets took */
    GS_EPILOGUE_ORDER,    /* in which order gradients became ready on rank 0 */
    GS_EPILOGUE_MISSING   /* which gradients were never marked */
} gs_epilogue;

/* Where buckets go another way, the order is told as soon as all are launched: a rank that finishes another reducer
 * first would else keep those waiting who finish this one. */
typedef enum gs_early_order {
    GS_EARLY_NOT,
    GS_EARLY_ASKED, /* whoever makes progress begins */
    GS_EARLY_UNDER_WAY,
    GS_EARLY_TOLD
} gs_early_order;

enum { GS_ORDER_INDICES_MAX = 1000, GS_MISSING_TEXT_MAX = 512 };

typedef struct gs_order_piece {
    uint32_t total;
    uint32_t indices[GS_ORDER_INDICES_MAX];
} gs_order_piece;

struct gs_pipeline {
    gs_pipeline *next_pipeline; /* the engine's list */
    gs_lane *lane;
    gs_group *group;
    const gs_bucket_plan *plan;
    const gs_ready_ledger *ledger;
    gs_gradient *gradients;
    gs_pipeline_terms terms;
    size_t *slot_offset;                   /* per bucket of the plan: bytes into this rank's slots */
    gs_wire_rule wires[GS_PLAN_WIRES_MAX]; /* before GS_PLAN_NARROW_FIRST: native */
    double divisor;                        /* of the last step that counted and had one */
    gs_lane_wire wire;                     /* of the bucket at work */
    gs_sparse sparse;
    gs_choice *choices;     /* per bucket; NULL: nothing is is_auto */
    uint64_t choices_since; /* the plan is as old as this step */
    size_t choices_done;    /* in the epilogue */
    uint64_t bucket_start_ns;
    gs_lane_private private_data; /* the gradients of the bucket at work, for buckets that peers cannot reach */

    gs_step_terms step;
    size_t bucket;         /* the one at work */
    size_t refused_bucket; /* this rank refuses it; SIZE_MAX: none */
    uint32_t refusal_index;
    float half_scale; /* FLOAT16: the power of two for gradients without a loss scale; 0: not known yet */
    char missing[GS_MISSING_TEXT_MAX]; /* names of the gradients for which it refuses */
    gs_lane_outcome outcome;           /* of the last bucket that was at work */
    gs_step_findings findings;         /* of all ranks, if terms.looks, once the step has ended */
    gs_epilogue epilogue;
    _Atomic int early_order; /* gs_early_order */
    gsync_status early_status;
    bool is_posted;     /* the operation of the bucket at work, or the epilogue's, is in the lane */
    bool is_torn;       /* the failed bucket may mix old and reduced values */
    bool is_concluding; /* gs_pipeline_conclude waits for the early order, with ... */
    bool is_refused;    /* ... this and status */
    gs_order_piece order_piece;
    uint32_t *observed; /* gradient_count entries: rank 0's ready order, once the step has ended */
    size_t observed_count;
    uint64_t bytes_copied;
    uint64_t bytes_reduced;
    uint64_t bytes_sent_before; /* by the lane, before this step */
    gs_step_findings noticed;   /* by this rank so far */
    char failure_text[GS_FAIL_TEXT_MAX];
    gsync_status status; /* of the step; valid once is_ended */

    _Atomic size_t launched; /* buckets [0, launched) may go */
    _Atomic size_t reduced;  /* buckets [0, reduced) hold results */
    _Atomic int is_ended;    /* all buckets are through, or status tells why not */
};

/* A gradient's elements become at most so many times longer in the wide type: 16 bits become 32. */
enum { GS_GRADIENT_WIDENING_MAX = 2 };

/* Sizes: a rank's slot memory for any plan over these gradients, if it has to be there (see gs_pipeline_lay_out), and
 * the largest bucket that any plan can have, in the wide type. */
size_t gs_pipeline_slot_bytes(const gs_plan_gradient *shapes, size_t gradient_count, bool sums_wide);
size_t gs_pipeline_wide_bytes(const gs_plan_gradient *shapes, size_t gradient_count, const gs_plan_rule *rule);

/* Places the buckets of a new plan in the slots, and the gradients that live there. views: where those live instead
 * when results are deferred or the library accumulates; NULL: in the slots. */
void gs_pipeline_lay_out(gs_pipeline *pipeline, unsigned char *views);

void gs_pipeline_begin(gs_pipeline *pipeline, const gs_step_terms *step);

/* bucket_count more buckets may go. Any thread. */
void gs_pipeline_launch(gs_pipeline *pipeline, size_t bucket_count);

/* Before launching the bucket: this rank never marked gradients of it, and tells the others. missing: their names, and
 * those of later buckets. */
void gs_pipeline_refuse(gs_pipeline *pipeline, size_t bucket, uint32_t gradient_index, const char *missing);

/* All buckets are launched, and go another way: rank 0's ready order may be told. Any thread. */
void gs_pipeline_tell_order(gs_pipeline *pipeline);

/* What telling it early has ended with; *is_open: it has not ended yet. Any thread. */
gsync_status gs_pipeline_early_status(const gs_pipeline *pipeline, bool *is_open);

/* The step is over for this rank without the others; an order that is being told goes on. */
void gs_pipeline_leave(gs_pipeline *pipeline, size_t launched, gsync_status status);

/* The buckets went another way, and `launched` of them are through, or the step has failed. What the ranks still tell
 * each other then moves like a bucket. */
void gs_pipeline_conclude(gs_pipeline *pipeline, size_t launched, gsync_status status, bool is_refused);

/* Moves what can be moved; *is_waiting: something is launched and not through. Returns whether anything moved. */
bool gs_pipeline_progress(gs_pipeline *pipeline, bool *is_waiting);

/* Once all buckets are through: agrees on unused gradients and late writes, then writes deferred results. Blocking. */
gsync_status gs_pipeline_settle(gs_pipeline *pipeline, gs_idle_function idle, void *argument);

/* changed: index of a gradient of this rank that was written after it was marked ready; GS_NO_BUCKET: none.
 * GSYNC_ERR_CHANGED, on all ranks, names one. Blocking. */
gsync_status gs_pipeline_agree_on_writes(gs_pipeline *pipeline, uint32_t changed, gs_idle_function idle,
                                         void *argument);

/* After a step whose results are written: GSYNC_ERR_MISMATCH, on all ranks, names the first gradient that differs.
 * digests: of every gradient; NULL: of those on the host. Blocking. */
gsync_status gs_pipeline_check_replicas(gs_pipeline *pipeline, const uint64_t *digests, gs_idle_function idle,
                                        void *argument);

/* Has the step ended? Then *status, with the words put where gsync_last_error finds them. */
bool gs_pipeline_has_ended(gs_pipeline *pipeline, gsync_status *status);

/* checks_writes: remembers what a gradient holds now, tells whether it holds something else, and words that. */
void gs_pipeline_note_hash(gs_gradient *gradient);
bool gs_gradient_has_changed(const gs_gradient *gradient);
gsync_status gs_gradient_fail_changed(const char *name, int rank);

/* sync/findings_exchange.c */
void gs_findings_note(gs_pipeline *pipeline, size_t bucket, const gs_findings *found);
gsync_status gs_findings_post(gs_pipeline *pipeline);
void gs_findings_take(gs_pipeline *pipeline);

/* sync/wire_choice.c */
/* A new plan after so many steps: trials begin anew. */
void gs_choice_start(gs_pipeline *pipeline, uint64_t steps_before);
bool gs_choice_is_native(const gs_pipeline *pipeline, size_t bucket);
void gs_choice_note_launch(gs_pipeline *pipeline);
uint64_t gs_choice_since_launch(const gs_pipeline *pipeline);
/* In this step, of a bucket, or of any. */
bool gs_choice_is_on_trial(const gs_pipeline *pipeline, size_t bucket);
bool gs_choice_has_trials(const gs_pipeline *pipeline);
/* How long it took in this step. */
void gs_choice_note(gs_pipeline *pipeline, size_t bucket, uint64_t took_ns);
bool gs_choice_is_due(const gs_pipeline *pipeline);
gsync_status gs_choice_post(gs_pipeline *pipeline);
/* Returns whether that was the last piece. */
bool gs_choice_take(gs_pipeline *pipeline);

/* sync/narrow.c */
/* In this step the bucket travels on its narrow wire. */
bool gs_narrow_is_on(const gs_pipeline *pipeline, size_t bucket);
/* The type of the elements that the lane adds up, in this step. */
gsync_dtype gs_narrow_dtype(const gs_pipeline *pipeline, size_t bucket);
/* Sets pipeline->wire for the bucket at work. Returns NULL where it travels as it is. */
const gs_lane_wire *gs_narrow_prepare(gs_pipeline *pipeline, size_t bucket);
/* The step counts, or does not: residuals that it wrote become valid, or are forgotten; and the next step's scale. */
void gs_narrow_settle(gs_pipeline *pipeline, bool counts);
/* data += what is owed, times unit; and: all of rest is owed from now on, in that unit. */
void gs_narrow_add_residual(float *data, const gs_residual *residual, size_t first, size_t count, float unit);
void gs_narrow_owe(gs_residual *residual, const float *rest, size_t count, float unit);
/* Before another plan: others may add up an element then, so what this rank owes of results it owes as a
 * contribution. */
void gs_narrow_fold(gs_pipeline *pipeline);
/* FLOAT16: by what elements are multiplied before they are rounded. */
float gs_narrow_scale(const gs_pipeline *pipeline, gs_wire_stage stage);
/* The power of two by which gradients of up to this magnitude are multiplied before they become float16. */
float gs_narrow_half_scale(double absmax, int world_size);
/* Bytes that an element of a gradient may need in the library's memory, however it travels. */
size_t gs_narrow_place_size(gsync_dtype dtype, uint32_t wire, bool sums_wide);
/* Its elements with what fills up its last block. */
size_t gs_narrow_place_count(const gs_plan_gradient *shape);

/* A stretch of one gradient in a bucket, or of what fills up its last block. */
typedef struct gs_stretch {
    uint32_t index;
    size_t first; /* element of the gradient */
    size_t count;
    bool is_filling; /* first is beyond its end */
} gs_stretch;
/* From an element of the bucket on, up to count elements. */
gs_stretch gs_bucket_stretch(const gs_pipeline *pipeline, size_t bucket, size_t element, size_t count);
/* The gradient that holds it. */
uint32_t gs_bucket_member(const gs_pipeline *pipeline, size_t bucket, size_t element);

/* sync/epilogue.c */
/* What comes after the one that is over; GS_EPILOGUE_NONE: after the buckets. */
gs_epilogue gs_epilogue_after(gs_pipeline *pipeline, gs_epilogue last);
gsync_status gs_epilogue_post(gs_pipeline *pipeline);
/* What was posted is done: makes use of it. The epilogue is over when it then is GS_EPILOGUE_NONE. */
gsync_status gs_epilogue_take(gs_pipeline *pipeline);

/* sync/bucket.c */
void gs_bucket_init(gs_pipeline *pipeline);
/* Tells the operation where the bucket's data is, and packs it where its result is held back. */
void gs_bucket_offer(gs_pipeline *pipeline, size_t bucket, gs_lane_operation *operation);
/* Counts the bucket's bytes in bytes_reduced. */
void gs_bucket_note_bytes(gs_pipeline *pipeline, size_t bucket);
/* What a gradient brings, as float32; and its result, to where results of this step go. */
void gs_bucket_gather(gs_pipeline *pipeline, uint32_t index, float *to);
void gs_bucket_scatter(gs_pipeline *pipeline, uint32_t index, const float *from);
/* Writes a result that was held back to the gradients. */
void gs_bucket_unpack(gs_pipeline *pipeline, size_t bucket);
/* Index of a gradient of the bucket that was written after it was marked ready; GS_NO_BUCKET: none. */
uint32_t gs_bucket_find_changed(const gs_pipeline *pipeline, size_t bucket);

#endif
