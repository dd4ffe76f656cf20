/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_SYNC_STREAM_INTERNAL_H
#define GS_SYNC_STREAM_INTERNAL_H

/* Shared by the files stream_*.c. */

#include "collective/collective_nccl.h"
#include "device/device_cuda.h"
#include "device/topk_cuda.h"
#include "sync/stream.h"

enum {
    GS_STREAM_PRODUCERS = 4, /* streams per bucket that are waited for one by one */
    GS_STREAM_TURNS = 4,     /* steps that the host may be ahead of the device */
    GS_STREAM_ALIGNMENT = 256,
    GS_STREAM_PART = 16, /* bytes: parts of ranks begin at multiples of it */
    GS_STREAM_NAMES = 31
};

/* A stream that makes gradients of a bucket final. */
typedef struct gs_stream_producer {
    _Atomic uintptr_t key; /* the stream's handle + 1; 0: free */
    _Atomic int is_taken;  /* by the thread that records the event */
    void *event;
} gs_stream_producer;

typedef struct gs_stream_bucket {
    gs_stream_producer producers[GS_STREAM_PRODUCERS];
    void *done;  /* event: results are where they belong */
    void *began; /* is_auto: timers around what the bucket is queued for; NULL: there are none */
    void *ended;
    size_t at;   /* bytes into buffers, parts and sums */
    void *place; /* where its gradients lie one behind the other; NULL: nowhere */

    /* TOPK */
    size_t entry_count; /* of one rank */
    uint32_t tile_count;
} gs_stream_bucket;

/* Whether a gradient and an accumulator are brought: the four tables of terms. */
enum { GS_STREAM_HAS_DATA = 1, GS_STREAM_HAS_SUM = 2, GS_STREAM_TABLES = 4 };

/* By gs_wire_stage. */
enum { GS_STREAM_RESIDUALS = 2 };

/* TOPK. Nothing where no gradient travels so. */
typedef struct gs_stream_sparse {
    size_t entries_max;      /* of one rank, in one bucket */
    size_t choices_max;      /* in one bucket */
    void *memory;            /* on the device, of all that is there: */
    gs_cuda_choice *choices; /* of every gradient, in the order of the plan */
    void *scratch;
    gs_cuda_entry *entries;    /* of all ranks, for the bucket at work */
    void *pinned;              /* on the host, of */
    gs_cuda_choice *images[2]; /* of choices: with those of tables */
} gs_stream_sparse;

/* The passes over a bucket. */
typedef enum gs_stream_stage {
    GS_STREAM_ENCODE,
    GS_STREAM_COMBINE,
    GS_STREAM_DECODE,
    GS_STREAM_STAGES
} gs_stream_stage;

typedef struct gs_stream_refusal {
    uint32_t count; /* of forgotten gradients; 0: this rank refuses nothing */
    uint32_t gradients[GS_STREAM_NAMES];
} gs_stream_refusal;

/* One step's side of the host: pinned memory, which the device reads or writes until `finished`. */
typedef struct gs_stream_turn {
    void *finished; /* event */
    bool is_busy;   /* the device may still use it */
    bool is_open;   /* nobody has looked at what it brought */
    uint64_t step;
    uint64_t plan; /* its digest */
    gs_cuda_share *own;
    gs_cuda_share *shares; /* of all ranks */
    double *divisor;
    gs_stream_refusal *own_refusal;
    gs_stream_refusal *refusals;
    gs_cuda_findings *findings; /* of every bucket and gs_stream_stage */

    /* finds_unused: of every gradient, in the order of the plan. */
    uint8_t *brings; /* GS_STREAM_HAS_DATA and GS_STREAM_HAS_SUM */
    float *own_used; /* 1 or 0 */
    float *used;     /* by so many ranks */

    uint64_t *digests; /* of what every gradient holds, in the order of the plan */
    uint64_t *marked;  /* checks_writes: when it was marked, by gradient */
    uint8_t *written;  /* error feedback: of every gradient, in the order of the plan, GS_CUDA_WROTE_* */
} gs_stream_turn;

/* How far a rank has come. */
typedef enum gs_stream_phase {
    GS_STREAM_BETWEEN,      /* it has ended the step, or has begun none */
    GS_STREAM_LAUNCHING,    /* so many buckets of the step are launched */
    GS_STREAM_LAUNCHED,     /* all are */
    GS_STREAM_ACCUMULATING, /* it has ended the step, and begun a micro-batch that ends none */
    GS_STREAM_COMMITTING    /* it has ended the step, and commits again */
} gs_stream_phase;

typedef struct gs_stream_position {
    int phase; /* gs_stream_phase */
    size_t bucket;
    uint64_t step;
} gs_stream_position;

typedef struct gs_stream_laggard {
    int rank;
    bool has_left;
    gs_stream_position position;
} gs_stream_laggard;

enum { GS_STREAM_LAGGARDS = 2 };
typedef struct gs_stream_laggards {
    uint32_t count;
    gs_stream_laggard first[GS_STREAM_LAGGARDS];
} gs_stream_laggards;

/* Why a step does not end, as far as it is known here. */
typedef struct gs_stream_delay {
    uint64_t step;            /* 0: none, only what this rank's device has to do */
    uint64_t plan;            /* its digest */
    gs_stream_laggards late;  /* ranks that have not launched all of it */
    gs_stream_laggards stuck; /* ranks whose gradients are not final, and the first bucket that waits for them */
    int unheard;              /* ranks of which nothing is known */
    bool has_lost;            /* some that is late has left */
} gs_stream_delay;

/* A step that no host waits for. */
typedef struct gs_stream_watched {
    void *event; /* NULL: none */
    uint64_t begin_ns;
    uint64_t step;
    uint64_t plan;
    size_t launched;
} gs_stream_watched;

/* Who looks after them: stream_watch.c. */
typedef struct gs_stream_watch {
    pthread_t thread;
    bool is_running;
    pthread_mutex_t gate;
    pthread_cond_t changed;
    bool is_stopping;                         /* under gate, as are the */
    gs_stream_watched steps[GS_STREAM_TURNS]; /* by turn */
    const gs_stream_watched *last;            /* no micro-batch has begun since; NULL: one has */
    gsync_status status;                      /* written once, and then */
    char text[GS_FAIL_TEXT_MAX];
    bool has_delay;        /* which says it better than the text */
    gs_stream_delay delay; /* of the last look */
    _Atomic int has_failed;
} gs_stream_watch;

struct gs_stream {
    gs_pipeline *pipeline;
    gs_cuda *cuda;
    gs_nccl *nccl; /* NULL: this rank is alone */
    void *queue;   /* the library's stream */
    int world_size;
    int rank;
    size_t capacity; /* buckets, and gradients */
    bool is_deterministic;
    bool accumulates;
    bool finds_unused;
    bool compares_replicas;
    bool checks_writes;
    bool exchanges_refusals;
    int nccl_ctas_max;
    bool allows_shared_device;
    bool has_normal_priority;
    bool is_registered;

    /* On the device, in one piece each: what gradients travel in, and what steps need besides. */
    void *arena;
    size_t arena_bytes;
    bool is_arena_nccls; /* of ncclMemAlloc */
    unsigned char *views;
    unsigned char *buffers; /* what is encoded, and results */
    unsigned char *parts;   /* direct: what the others sent; NULL: no bucket can travel so */
    unsigned char *sums;    /* accumulators; NULL: none */
    void *small;
    gs_cuda_term *tables[GS_STREAM_TABLES];
    gs_cuda_share *shares;
    gs_stream_refusal *refusals;
    double *divisor;
    uint8_t *brings; /* as in turns */
    float *used;
    uint64_t *digests;
    uint64_t *marked;
    gs_cuda_residual *residuals[GS_STREAM_RESIDUALS]; /* by gs_wire_stage, then by gradient; NULL: no error feedback */
    uint8_t *written;                                 /* as in turns */
    double *kept_divisor;                             /* of the last step that counted and wrote a residual */
    void *sides;                                      /* of all residuals, in one piece */
    gs_stream_sparse sparse;
    gs_cuda_notebook *notebook; /* of the pass at work */
    gs_cuda_notebook *blank;    /* where nothing is ever noticed */

    /* On the host, pinned. */
    void *pinned;
    gs_cuda_residual *host_residuals[GS_STREAM_RESIDUALS];
    gs_cuda_term *images[2]; /* of all tables, in turn: one may be on its way */
    void *uploaded[2];       /* events */
    int image;
    bool has_moved; /* the tables are not what they should be */
    gs_stream_turn turns[GS_STREAM_TURNS];
    gs_stream_turn *turn; /* this step's */
    uint64_t turns_taken;

    gs_stream_bucket *buckets;
    uint64_t *known_digests; /* of the last step for which they were asked, by gradient */
    void *followed;          /* event: of streams that are waited for at once */
    double known_divisor;    /* of this step; 0: only the device will know */
    double stored_divisor;   /* what `divisor` holds; 0: not known here */
    size_t launched;
    bool is_opened;      /* the ranks exchange their shares */
    bool has_found;      /* findings were asked for */
    gsync_status status; /* of what was queued in this step */
    char failure_text[GS_FAIL_TEXT_MAX];
    gs_stream_watch watch;
};

/* How one bucket goes in one step. The ranks agree on all of it but place, encodes and brings. */
typedef struct gs_stream_route {
    size_t bucket;
    gsync_dtype wire;
    size_t size; /* of a wire element */
    float scale; /* 0: no narrow wire of 16 bits */
    gs_cuda_blocks blocks;
    bool is_sparse; /* only the largest elements travel */
    bool is_direct; /* summed in the order of ranks, by the rank whose part it is */
    double factor;  /* not direct: multiplies before the sum */
    bool divides;   /* someone has to, after the sum */
    int brings;     /* the table of terms to encode */
    bool differs;   /* and what counts of it, gradient by gradient */
    bool is_held;   /* decoded at the end of the step */
    unsigned char *at;
    bool is_in_place; /* at is where the gradients are */
    bool encodes;
} gs_stream_route;

/* stream_route.c */
gs_stream_route gs_stream_route_of(const gs_stream *stream, size_t bucket);
/* A rank alone whose gradients are the result already. */
bool gs_stream_changes_nothing(const gs_stream *stream, const gs_stream_route *way);
/* As gs_narrow_scale has it, but by a divisor that perhaps only the device knows. */
gs_cuda_result_scale gs_stream_result_scale(const gs_stream *stream, const gs_stream_route *way);
/* INT8: how its contributions are rounded. */
gs_cuda_randomness gs_stream_randomness(const gs_stream *stream, const gs_stream_route *way);
/* A pass over the bucket, and one of the four tables. */
gs_cuda_pass gs_stream_pass_of(const gs_stream *stream, const gs_stream_route *way, int table);

/* stream_memory.c */
gsync_status gs_stream_open(gs_stream **stream, gs_pipeline *pipeline, const gs_stream_wish *wish);
void gs_stream_close(gs_stream *stream, bool has_ended);
void gs_stream_lay_out(gs_stream *stream);
/* Brings the tables of terms up to date. May wait for the one before last. */
gsync_status gs_stream_upload(gs_stream *stream);

/* stream_feedback.c */
/* For so many gradients tables are needed: all or none. */
size_t gs_stream_residual_count(const gs_stream_wish *wish, const gs_pipeline *pipeline);
gsync_status gs_stream_allocate_residuals(gs_stream *stream, const gs_stream_wish *wish);
/* In this step the bucket's passes read and write residuals: stream->residuals, by the terms' numbers, of which
 * host_residuals tell the host where they are. */
bool gs_stream_feeds_back(const gs_stream *stream, size_t bucket);
/* The other sides of the bucket's gradients are written in this step. Under the launch lock. */
void gs_stream_note_written(gs_stream *stream, size_t bucket, gs_wire_stage stage);
/* What a pass over the bucket feeds back; then its gradients' other sides are noted to be written. */
gs_cuda_feedback gs_stream_feedback(gs_stream *stream, const gs_stream_route *way, gs_wire_stage stage);
/* Before the first pass of a step. */
gsync_status gs_stream_begin_feedback(gs_stream *stream);
/* Behind the last pass of a step that no host waits for: what was written becomes valid if the device finds that the
 * step counts. */
gsync_status gs_stream_settle_alone(gs_stream *stream);
/* After a step that a host has waited for, and gs_narrow_settle. */
gsync_status gs_stream_settle_decided(gs_stream *stream);
/* As gs_narrow_fold. */
gsync_status gs_stream_fold(gs_stream *stream);
size_t gs_stream_owed_bytes(const gs_stream *stream, size_t index, gs_wire_stage stage);
/* Between steps, and wait: all residuals, gradient by gradient and stage by stage; and the divisor of gs_narrow_fold,
 * where there are any. */
gsync_status gs_stream_save(gs_stream *stream, void *to, double *divisor);
gsync_status gs_stream_load(gs_stream *stream, const void *from, double divisor);

/* stream_producers.c */
gsync_status gs_stream_wait_producers(gs_stream *stream, size_t bucket);
void gs_stream_forget_producers(gs_stream *stream);
/* The first of the launched buckets that a producer keeps waiting. */
bool gs_stream_find_busy_producer(const gs_stream *stream, size_t launched, size_t *bucket);
/* Is it waited for on its own? */
bool gs_stream_has_producer(const gs_stream *stream, size_t bucket, void *producer);
/* Lets the library's stream wait for all that the producers of this micro-batch have queued since. */
gsync_status gs_stream_catch_up(gs_stream *stream);
gsync_status gs_stream_follow(gs_stream *stream, void *other);
gsync_status gs_stream_let_follow(gs_stream *stream, void *other);

/* stream_exchange.c */
gsync_status gs_stream_exchange_shares(gs_stream *stream);
/* What this rank can tell of the divisor alone; 0: nothing. */
double gs_stream_known_divisor(const gs_stream *stream);
/* The turn's memory on the host is free when what is queued so far is done. */
gsync_status gs_stream_end_turn(gs_stream *stream);
/* Queues what is exchanged when all buckets are launched. */
gsync_status gs_stream_exchange_end(gs_stream *stream, bool looks);
/* A finished turn: do the ranks agree? Fills in the pipeline's outcome. */
gsync_status gs_stream_judge(gs_stream *stream, const gs_stream_turn *turn, gs_lane_outcome *outcome);
bool gs_stream_is_refused(const gs_stream *stream, const gs_stream_turn *turn);
gsync_status gs_stream_fail_refused(const gs_stream *stream, const gs_stream_turn *turn);
void gs_stream_take_findings(gs_stream *stream, const gs_stream_turn *turn);

/* stream_unused.c */
/* Which table of terms a bucket of this step is encoded from. *differs: not all of its gradients bring the same; then
 * the table is that of everything, and gs_stream_send_brings says what counts. */
int gs_stream_brings(const gs_stream *stream, size_t bucket, bool *differs);
/* The same for a micro-batch that is only accumulated. */
int gs_stream_accumulates(const gs_stream *stream, size_t bucket, bool *differs);
gsync_status gs_stream_send_brings(gs_stream *stream, size_t bucket, bool is_accumulated);
/* Whether results are written is known at the end of the step: this rank has not used all gradients of the bucket, or
 * they must not have been written late. */
bool gs_stream_is_held(const gs_stream *stream, size_t bucket);
/* stream_sparse.c */
gsync_status gs_stream_allocate_sparse(gs_stream *stream, const gs_stream_wish *wish);
void gs_stream_free_sparse(gs_stream *stream);
/* With the tables of terms. */
gsync_status gs_stream_send_choices(gs_stream *stream, int image);
/* An encoded bucket becomes the sum of what all ranks choose of it. */
gsync_status gs_stream_reduce_sparse(gs_stream *stream, const gs_stream_route *way);

/* Gradients that are in buckets; the others take part in nothing. */
size_t gs_stream_member_count(const gs_stream *stream);
/* Queues the exchange of what each rank has used, after which stream->used holds. */
gsync_status gs_stream_exchange_used(gs_stream *stream);
/* What was known after the step becomes stream->used again. Another plan may have been made since. */
gsync_status gs_stream_send_used(gs_stream *stream);
void gs_stream_take_used(gs_stream *stream, const gs_stream_turn *turn);

/* stream_digests.c */
/* Queues digests of what all gradients hold, and sends them to the turn. */
gsync_status gs_stream_digest_all(gs_stream *stream);
void gs_stream_note_mark(gs_stream *stream, pthread_mutex_t *launch_lock, uint32_t gradient_index,
                         void *const *producer);
gsync_status gs_stream_compare_marks(gs_stream *stream, gs_idle_function idle, void *argument, const uint64_t **marked,
                                     const uint64_t **now);
gsync_status gs_stream_digests(gs_stream *stream, gs_idle_function idle, void *argument, const uint64_t **digests);

/* stream_times.c */
gsync_status gs_stream_make_timers(gs_stream *stream, const gs_stream_wish *wish);
void gs_stream_free_timers(gs_stream *stream);
gsync_status gs_stream_note_began(gs_stream *stream, size_t bucket);
gsync_status gs_stream_note_ended(gs_stream *stream, size_t bucket);
/* Of the last step, which is over, or which is waited for. */
gsync_status gs_stream_read_times(gs_stream *stream);
gsync_status gs_stream_wait_for_times(gs_stream *stream, gs_idle_function idle, void *argument);

/* stream_watch.c */
void gs_stream_init_watch(gs_stream *stream);
void gs_stream_end_watch(gs_stream *stream);
/* No host will wait for the turn's step; or it is over. */
void gs_stream_watch_turn(gs_stream *stream, const gs_stream_turn *turn);
void gs_stream_forget_turn(gs_stream *stream, const gs_stream_turn *turn);
/* What was found wrong with such a step. */
gsync_status gs_stream_watch_status(const gs_stream *stream);

/* stream_delay.c */
/* For the others, should they wait in vain; each is one store. bucket_count: are launched of the step. */
void gs_stream_tell_launched(const gs_stream *stream, uint64_t step, size_t bucket_count);
void gs_stream_tell_phase(const gs_stream *stream, gs_stream_phase phase, uint64_t step);
void gs_stream_tell_accumulation(const gs_stream *stream);
/* This rank has waited for long: which of its producers are still at work? step 0: what is waited for belongs to none.
 */
void gs_stream_tell_producers(const gs_stream *stream, uint64_t step, size_t launched);
void gs_stream_tell_wait(const gs_stream *stream);
/* Steps may be counted anew. */
void gs_stream_forget_wait(const gs_stream *stream);
gs_stream_delay gs_stream_find_delay(const gs_stream *stream, uint64_t step, uint64_t plan);
/* The failure that a delay means, in words: GSYNC_ERR_TIMEOUT, or GSYNC_ERR_PEER_LOST if it cannot end. Reads the plan,
 * so not for the watch. */
gsync_status gs_stream_fail_delay(const gs_stream *stream, const gs_stream_delay *delay, const char *after);
/* The same for what this rank waits for now; */
gsync_status gs_stream_fail_late(const gs_stream *stream);
/* only if it cannot end; */
gsync_status gs_stream_check_lost(const gs_stream *stream);
/* and in addition to what has failed, if ranks are late. */
gsync_status gs_stream_explain(const gs_stream *stream, gsync_status status);

/* stream_wait.c */
/* Until the event is done, the ranks give up, or the deadline passes: what fails has failed the stream. */
gsync_status gs_stream_wait_event(gs_stream *stream, void *event, gs_idle_function idle, void *argument);
gsync_status gs_stream_wait(gs_stream *stream, gs_idle_function idle, void *argument, bool *is_refused);
gsync_status gs_stream_wait_for_sums(gs_stream *stream, gs_idle_function idle, void *argument);
/* Has some rank given up? Those that have left may have sent their part. */
gsync_status gs_stream_check_abort(const gs_stream *stream);
/* Until nothing of the library's stream is on the device, for a moment at most. False: something still is. */
bool gs_stream_drain(gs_stream *stream);
/* The first failure of a step: nothing more is queued, and the other ranks are told. */
void gs_stream_fail(gs_stream *stream, gsync_status status);
/* stream->status, with its words. */
gsync_status gs_stream_status(const gs_stream *stream);
/* Looks at steps that no host has waited for. */
gsync_status gs_stream_review(gs_stream *stream);

#endif
