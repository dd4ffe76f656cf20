/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_LANE_INTERNAL_H
#define GS_COLLECTIVE_LANE_INTERNAL_H

/* What the files of the lane share: its memory, and its stages. Included by lane*.c only. */

#include "collective/lane.h"

/* What a rank says about the operation that it is at. */
typedef struct gs_lane_header {
    _Alignas(128) gs_lane_topic topic; /* no line of it is another rank's */
    uint64_t count;
    double weight;
    double loss_scale;
    uint64_t data; /* an address where peers share the address space, else an offset into the segment */
    uint64_t mail_bytes;
    int32_t kind;
    int32_t verdict;
    uint32_t verdict_index;
    uint32_t micro_batches;
    int32_t dtype;
    int32_t op;
    int32_t divide;
    uint8_t contributes;
    uint8_t compares_micro_batches;
    uint8_t divides_by_micro_batches;
    uint8_t is_private;
    uint8_t looks;
} gs_lane_header;

/* The number of the last operation for which a rank of this host has reached a point. Written by that rank only. */
typedef struct gs_lane_flags {
    _Alignas(128) _Atomic uint32_t arrived; /* its header can be read */
    _Atomic uint32_t finished;              /* its shard of the result is in every slot of this host */
    _Atomic uint32_t packed;                /* these count pieces, see gs_lane_flow: can be read by others */
    _Atomic uint32_t added;                 /* its shard of the piece's sum is where it belongs */
    /* Apart from those above, at which peers look all the time. */
    _Alignas(128) _Atomic uint32_t is_busy; /* it is touching memory of other ranks */
    _Atomic uint32_t is_closed;             /* it has left for good */
    /* Apart once more: nobody waits for these. */
    _Alignas(128) _Atomic uint64_t words[GS_LANE_WORDS];
} gs_lane_flags;

typedef struct gs_lane_shared {
    gs_abort_box abort_box;
    _Alignas(128) _Atomic uint32_t headers_known; /* several hosts: those of other hosts are here too */
    _Atomic uint32_t mail_known;                  /* several hosts: mail of other hosts is here */
    _Atomic uint32_t pieces_known;                /* several hosts: counts pieces whose sum over hosts is here */
    gs_lane_flags flags[];                        /* one per rank of the host */
} gs_lane_shared;

typedef enum gs_lane_stage {
    GS_LANE_IDLE,
    GS_LANE_ARRIVING,     /* ranks of this host are still to come */
    GS_LANE_FLOWING,      /* pieces are on their way between ranks, and between hosts */
    GS_LANE_NET_HEADERS,  /* the host's first rank exchanges headers with the other hosts' */
    GS_LANE_WAIT_HEADERS, /* the others wait for it */
    GS_LANE_NET_MAIL,     /* first rank: mail travels */
    GS_LANE_WAIT_MAIL,    /* the others wait for it */
    GS_LANE_FINISHING     /* ranks of this host are still writing into slots */
} gs_lane_stage;

/*
 * How far a REDUCE with private data, or between hosts, is. It goes in pieces, of which each rank's ring holds
 * GS_FLOW_DEPTH: while one is being added up the next is packed, and the one before unpacked. One more place in the
 * ring is for this rank alone.
 */
enum { GS_FLOW_DEPTH = 3, GS_FLOW_PLACES = GS_FLOW_DEPTH + 1 };
/* Between hosts, what is no longer than this in the wide type goes in one phase: the second would cost more than the
 * bytes that it saves. */
enum { GS_SHORT_BYTES = 8192 };
typedef struct gs_lane_flow {
    uint32_t base; /* pieces of all operations before: flags count on from one operation to the next */
    uint32_t count;
    size_t elements; /* of a piece; the last one may have less */
    uint32_t packed; /* pieces done by this rank */
    uint32_t added;
    uint32_t cleared; /* added by all ranks of the host */
    uint32_t sent;    /* first rank of several hosts: on their way to other hosts */
    uint32_t united;  /* first rank of several hosts: added up over hosts, and on their way back */
    uint32_t known;   /* first rank of several hosts: back */
    uint32_t taken;
} gs_lane_flow;

struct gs_lane {
    gs_group *group;
    gs_segment segment; /* base NULL for the control lane, which lives in the group's */
    bool owns_segment;
    unsigned char *memory;
    gs_lane_shape shape;
    gs_lane_shared *shared;
    gs_lane_header *headers[2]; /* by parity of the operation: a fast peer may already write the next one's */
    unsigned char *mail[2];     /* likewise; world_size boxes of mail_stride bytes, by seat */
    size_t mail_stride;
    unsigned char *slots; /* local_count x slot_stride */
    size_t slot_stride;
    unsigned char *rings; /* local_count x ring_stride */
    size_t ring_stride;
    gs_lane_flow flow;
    unsigned char *host_sum; /* several hosts: the sum over this host's ranks, then over all, in the wide type */
    unsigned char *received; /* first rank of several hosts: other hosts' parts; private; one per host and slot */
    size_t received_stride;
    unsigned char *encoded; /* likewise: what goes out on a narrow wire; as received */
    float *decoded;         /* likewise: parts of one piece, one per host, received_stride bytes each */
    gs_net_transfer *transfers;
    gs_net *net;
    const void **sources; /* scratch of max(local_count, host_count) */
    void **targets;

    uint32_t sequence; /* number of the operation in flight, or of the last one */
    gs_lane_stage stage;
    gs_lane_operation operation;
    gs_lane_outcome outcome;
    uint64_t deadline_ns;
    gsync_status broken; /* why no further operation is possible */
};

static inline bool gs_lane_is_first(const gs_lane *lane) {
    return lane->group->local_rank == 0;
}

static inline gs_lane_header *gs_lane_headers(const gs_lane *lane) {
    return lane->headers[lane->sequence & 1u];
}

/* A sequence number that wraps around. */
static inline bool gs_lane_has_reached(uint32_t flag, uint32_t sequence) {
    return (int32_t)(flag - sequence) >= 0;
}

/* The part of a piece that one host adds up, as every host's sum has it. */
typedef struct gs_lane_part {
    size_t first; /* element of the operation */
    size_t count;
    unsigned char *data; /* in host_sum */
} gs_lane_part;

/* lane_verdict.c: all headers are known. GSYNC_OK, or the status on which all ranks agree, with lane->outcome. */
gsync_status gs_lane_judge(gs_lane *lane);
void gs_lane_describe(const gs_lane_topic *topic, char *text, size_t size);

/* lane_between_hosts.c: each starts messages of the host's first rank. */
gsync_status gs_lane_send_headers(gs_lane *lane);
gsync_status gs_lane_send_mail(gs_lane *lane);

/* lane_narrow.c: parts on a narrow wire. */
/* Encodes what the other hosts add up, and rounds what this one does. */
void gs_lane_encode_parts(gs_lane *lane, uint32_t piece);
/* What host `from` sent of this host's part, decoded. */
const void *gs_lane_decode_part(gs_lane *lane, uint32_t piece, int from);
/* This host's part is the result: rounds it, and encodes it if it is to be sent. */
void gs_lane_encode_result(gs_lane *lane, uint32_t piece);
/* Decodes the other hosts' results into their parts. */
void gs_lane_decode_results(gs_lane *lane, uint32_t piece);
unsigned char *gs_lane_encoded(const gs_lane *lane, uint32_t piece, const gs_lane_part *part);
size_t gs_lane_wire_bytes(const gs_lane *lane, size_t count);

/* lane_exchange.c: the first rank moves pieces between hosts. */
gs_lane_part gs_lane_part_of(const gs_lane *lane, uint32_t piece, int host);
unsigned char *gs_lane_received_from(const gs_lane *lane, uint32_t piece, int host);
/* It is so short that every host adds up all of it. */
bool gs_lane_is_short(const gs_lane *lane);
gsync_status gs_lane_exchange_advance(gs_lane *lane, bool *moved);
size_t gs_lane_add_transfer(gs_lane *lane, size_t n, int host, void *buffer, size_t bytes, bool is_send);

/* lane_reduce.c: this rank's shard of everybody's data. */
void gs_lane_sum_shard(gs_lane *lane);
/* Rounds this rank's data as the wire would. */
void gs_lane_round_range(gs_lane *lane, gs_wire_stage stage, size_t first, size_t count, float *data);
/* Adds to the outcome what was noticed from element `first` on. */
void gs_lane_note(gs_lane *lane, const gs_findings *part, size_t first);
/* A part of a result over hosts is there: notes it, once over all hosts, with what was found when it was added up. */
void gs_lane_note_part(gs_lane *lane, const gs_lane_part *part, gs_findings *found);
/* Elements [first, first + count): mine is this rank's data from there on, wherever that is. */
void gs_lane_sum_range(gs_lane *lane, size_t first, size_t count, void *mine);
/* The host's sum, or the sum over hosts, from element `first` on, as the result in `target`. */
void gs_lane_narrow_range(gs_lane *lane, size_t first, size_t count, void *target);
/* What the sum is divided by. */
double gs_lane_divisor(const gs_lane *lane);
/* Elements that a split must not divide. */
static inline size_t gs_lane_block(const gs_lane *lane) {
    return lane->operation.wire != NULL ? lane->operation.wire->block : 1;
}
/* This rank's data has to go through the wire's round, one host only. */
static inline bool gs_lane_rounds_data(const gs_lane *lane) {
    return lane->operation.wire != NULL && lane->operation.wire->rounding.to == GS_ROUND_NOT &&
           lane->group->host_count == 1;
}
bool gs_lane_has_private(const gs_lane *lane);
/* Where another rank of this host has, or will get, elements from `first` on. */
unsigned char *gs_lane_place(const gs_lane *lane, int local_rank, size_t first);

/* lane_flow.c */
void gs_lane_flow_start(gs_lane *lane);
gsync_status gs_lane_flow_advance(gs_lane *lane, bool *moved, bool *is_through);
bool gs_lane_flow_waits_for(const gs_lane *lane, int local_rank);
bool gs_lane_flow_waits_for_hosts(const gs_lane *lane);
void gs_lane_piece(const gs_lane *lane, uint32_t piece, size_t *first, size_t *count);

/* lane.c */
void gs_lane_announce(gs_lane *lane, _Atomic uint32_t *flag, uint32_t value);
/* Has the flag at this offset in gs_lane_flags come to `value` for every rank of the host? */
bool gs_lane_all_reached(const gs_lane *lane, size_t flag_offset, uint32_t value);
static inline gs_lane_flags *gs_lane_own_flags(const gs_lane *lane) {
    return &lane->shared->flags[lane->group->local_rank];
}

/* lane_agree.c: after gs_lane_agree and until the next operation: copies a rank's token, GS_TOKEN_MAX bytes. */
void gs_lane_agreed_token(const gs_lane *lane, int rank, char *token);

/* lane_wait.c: has anybody aborted, or given this lane up? */
gsync_status gs_lane_check_boxes(const gs_lane *lane);
/* Nothing moved; is there a reason to end? GSYNC_OK: keep waiting. */
gsync_status gs_lane_check(gs_lane *lane);
/* Marks this rank as touching others' memory, unless somebody has left. */
gsync_status gs_lane_enter(gs_lane *lane);
void gs_lane_leave(gs_lane *lane);
/* Waits until no other rank of this process touches memory that this rank posted. */
void gs_lane_retract(gs_lane *lane);

#endif
