/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_LANE_H
#define GS_COLLECTIVE_LANE_H

/*
 * A lane is a sequence of operations that all ranks of a group post in the same order, one at a time, independent of
 * every other lane. Each reducer has one, and the communicator has one for its own calls.
 *
 * Every operation starts with a header from each rank. All ranks see all headers before any data is touched, so all
 * come to the same verdict: go on, or fail with the same status and nothing changed. That is how a rank that
 * disagrees, or refuses, ends the operation everywhere instead of leaving the others waiting.
 *
 * Single-threaded: one thread at a time per lane. Nothing here blocks but gs_lane_run, and what calls
 * it: gs_lane_open and gs_lane_agree.
 */

#include "base/findings.h"
#include "collective/group.h"

typedef enum gs_lane_kind {
    GS_LANE_BARRIER = 1, /* nothing travels */
    GS_LANE_GATHER = 2,  /* each rank's mail becomes readable by all */
    GS_LANE_REDUCE = 3   /* every rank's data becomes the op over all ranks' */
} gs_lane_kind;

/*
 * Data that peers cannot reach, or that is not made of wire elements as it is. The lane asks for what it needs, piece
 * by piece, and gives results back likewise. Elements are counted from the start of the operation's data.
 */
typedef struct gs_lane_private {
    void *owner;
    /* Where elements from `first` on lie in a row: wire elements, which the result may overwrite. *count is cut to how
     * many there are. NULL: they have to be encoded. */
    void *(*find)(void *owner, size_t first, size_t *count);
    void (*encode)(void *owner, size_t first, size_t count, void *wire);
    void (*decode)(void *owner, size_t first, size_t count, const void *wire);
} gs_lane_private;

/* At which of its two roundings a value on a narrow wire is. */
typedef enum gs_wire_stage { GS_WIRE_CONTRIBUTION, GS_WIRE_RESULT } gs_wire_stage;

/*
 * A narrow wire for a REDUCE of float32. On one host nothing crosses a wire: there contributions and results are only
 * rounded to what would have come out of it. Between hosts each host's sum is what a rank's data is on one host, and
 * is encoded; results are encoded by the host that added them up. Ranges begin at multiples of block, and end there
 * too; data is overwritten with what the others decode.
 */
typedef struct gs_lane_wire {
    void *owner;
    size_t block; /* elements */
    size_t block_bytes;
    gs_rounding rounding; /* one host: rounding in the sum is all there is to do, and round is not called. TO NOT: it
                             is, and the data must be private */
    float (*result_scale)(void *owner); /* rounding to HALF: of results, once it is known what divides */
    void (*round)(void *owner, gs_wire_stage stage, size_t first, size_t count, float *data, gs_findings *findings);
    void (*encode)(void *owner, gs_wire_stage stage, size_t first, size_t count, float *data, void *wire,
                   gs_findings *findings);
    void (*decode)(void *owner, gs_wire_stage stage, size_t first, size_t count, const void *wire, float *data);
} gs_lane_wire;

/* What divides the sum. */
typedef enum gs_divide { GS_DIVIDE_NOT, GS_DIVIDE_WORLD, GS_DIVIDE_PARTICIPANTS, GS_DIVIDE_WEIGHT } gs_divide;

/* How an operation is called in errors: "allreduce", "bucket", ... All ranks must agree on every member. */
typedef struct gs_lane_topic {
    char what[16];
    uint64_t step;   /* 0: not in a step */
    uint64_t part;   /* bucket, chunk, ... */
    uint64_t total;  /* elements of the whole call, where it travels in pieces */
    uint64_t digest; /* anything else that must be equal */
} gs_lane_topic;

typedef struct gs_lane_operation gs_lane_operation;
struct gs_lane_operation {
    gs_lane_kind kind;
    gs_lane_topic topic;

    /* This rank's part. */
    gsync_status verdict;   /* not GSYNC_OK: this rank refuses, and every rank's operation fails with this status */
    uint32_t verdict_index; /* which gradient, for the one who words the failure */
    bool contributes;       /* REDUCE: false leaves this rank's data out of the sum */
    double weight;
    uint32_t micro_batches;
    bool compares_micro_batches; /* contributing ranks must agree on micro_batches */

    /* GATHER */
    const void *mail;
    size_t mail_bytes; /* at most gs_lane_mail_max; may differ by rank */

    /* REDUCE: `data` lies in this rank's slots, or anywhere where peers share the address space; or it is private. */
    void *data;
    const gs_lane_private *private_data;
    size_t count;
    gsync_dtype dtype;
    gsync_op op; /* SUM, MIN, MAX */
    gs_divide divide;
    bool divides_by_micro_batches; /* WORLD and PARTICIPANTS: also by the micro-batches of the window */
    double loss_scale;             /* divides too, in the same division; 0: as 1. All ranks must agree */
    const gs_lane_wire *wire;      /* NULL: elements travel as they are */
    gsync_dtype result_dtype;      /* what results are rounded to once they are written; 0: dtype */
    bool looks;                    /* SUM: outcome.findings are wanted */
};

/* What the headers of the last operation added up to. Valid once it is done, also when a verdict ended it. */
typedef struct gs_lane_outcome {
    double divisor; /* 0: there was nothing to divide, and the result is zero */
    double weight_total;
    uint32_t participants;
    int refusing_rank; /* -1: none */
    uint32_t verdict_index;
    bool is_data_touched; /* a failure came after results were being written into this rank's data */
    gs_findings findings; /* of what this rank added up or rounded; added over ranks, each element is there once. Its
                             nonfinite_source is a rank */
} gs_lane_outcome;

typedef struct gs_lane gs_lane;

typedef struct gs_lane_shape {
    size_t mail_bytes;       /* per rank */
    size_t slot_bytes;       /* per rank: data that lives where peers can reach it */
    size_t ring_bytes;       /* per rank: for private data on its way; at least 64 times the largest element */
    size_t wire_bytes_max;   /* the most that one REDUCE carries */
    size_t reduce_bytes_max; /* the same in the wide type */
    size_t block_bytes;      /* of data in the largest block of a wire that a REDUCE may have; 0: none has a wire */
    size_t widening_max;     /* how many times longer the wide type is than any dtype of a REDUCE */
} gs_lane_shape;

/* Collective over the control lane, blocking. All ranks give the same shape. */
gsync_status gs_lane_open(gs_group *group, const gs_lane_shape *shape, gs_lane **lane);

/* The control lane, in memory that exists. Not collective. */
gsync_status gs_lane_open_in(gs_group *group, const gs_lane_shape *shape, void *memory, gs_lane **lane);
/* ring_bytes for REDUCEs of private data of up to this many bytes. */
size_t gs_lane_ring_bytes(size_t bytes_max);
size_t gs_lane_memory_bytes(const gs_lane_shape *shape, int local_count, int world_size, int host_count);

/* This rank leaves for good, as gs_lane_close, but its memory stays. Every later post fails. */
void gs_lane_retire(gs_lane *lane);

/* Not collective. An operation in flight fails on the other ranks. When it returns no peer touches memory that this
 * rank posted. NULL accepted. */
void gs_lane_close(gs_lane *lane);

unsigned char *gs_lane_slots(gs_lane *lane); /* this rank's slot_bytes, aligned to 64, zero at first */
int gs_lane_world_size(const gs_lane *lane);
/* Between hosts every host adds up all of a REDUCE of so many float32, because it is short. */
bool gs_lane_is_added_by_all(const gs_lane *lane, size_t count);
/* During a REDUCE, once ranges are asked for: some rank of this host has data for it. */
bool gs_lane_host_contributes(const gs_lane *lane);
size_t gs_lane_mail_max(const gs_lane *lane);
/* By this rank to other hosts, so far, as the transport counts it. */
uint64_t gs_lane_bytes_sent(const gs_lane *lane);
/* After a GATHER and until the next operation is posted. */
const void *gs_lane_mail(const gs_lane *lane, int rank, size_t *bytes);

/* Of a GATHER of `count` 64-bit words from each rank: the first word in which a rank differs from rank 0, and that
 * rank. False: there is none. */
bool gs_lane_find_difference(const gs_lane *lane, size_t count, size_t *word, int *rank);

/* Starts an operation. What operation->data and mail point to stays valid until it is done. */
gsync_status gs_lane_post(gs_lane *lane, const gs_lane_operation *operation);

/*
 * Does some of what can be done now, without waiting. *is_done is set when the operation has ended, well or badly; the
 * status is then its result, the same class on every rank. *did_work tells whether anything moved. After anything but a
 * verdict or a disagreement the lane is broken and every later post fails.
 */
gsync_status gs_lane_progress(gs_lane *lane, bool *is_done, bool *did_work);

/* How a caller that has nothing else to do waits where messages are under way, which ring no bell. */
extern const gs_patience gs_lane_for_messages;

/* Called again and again while gs_lane_run waits; may be NULL. */
typedef void (*gs_idle_function)(void *argument);

/* post, progress and sleep until done or past the group's timeout. */
gsync_status gs_lane_run(gs_lane *lane, const gs_lane_operation *operation, gs_idle_function idle, void *argument);

/*
 * A GATHER of statuses, blocking: every rank learns whether all ranks succeeded. If not, all return the status of the
 * first rank that failed, with its words. `what` names the point in errors, at most 15 characters. token (may be NULL)
 * travels along.
 */
gsync_status gs_lane_agree(gs_lane *lane, const char *what, gsync_status own, const char *token);
/* After a successful gs_lane_agree, and before the next operation: maps the memory that this rank's token names. */
gsync_status gs_lane_attach(gs_lane *lane, int rank, size_t bytes, gs_segment *segment);

const gs_lane_outcome *gs_lane_last_outcome(const gs_lane *lane);
/* No further operation is possible. */
bool gs_lane_is_broken(const gs_lane *lane);

/* Between operations: whether another rank of this host has given up, or has left. *has_left: it has left, perhaps
 * after it had done all that is expected of it. */
gsync_status gs_lane_look(const gs_lane *lane, bool *has_left);

/* What a rank says of itself, at any time, for whoever waits for it in vain and wants to know why. Costs one store. */
enum { GS_LANE_WORDS = 2 };
typedef struct gs_lane_account {
    uint64_t words[GS_LANE_WORDS]; /* 0: it has said nothing yet */
    bool has_left;                 /* words are its last ones */
} gs_lane_account;
void gs_lane_tell(gs_lane *lane, int word, uint64_t value);
/* False: the rank is on another host, and cannot be heard here. */
bool gs_lane_hear(const gs_lane *lane, int rank, gs_lane_account *account);

/* Breaks the lane for all ranks of the host with what this rank's operation ended with. */
void gs_lane_give_up(gs_lane *lane, gsync_status status, const char *reason);

#endif
