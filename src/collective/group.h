/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_GROUP_H
#define GS_COLLECTIVE_GROUP_H

/*
 * One rank's view of a group of ranks. The ranks of one host share memory: segments, made by the host's first rank
 * and mapped by the others. Hosts are joined by a network, which only their first ranks use.
 *
 * What differs between ranks as threads and ranks as MPI processes is in gs_transport_ops; everything above it is
 * written once.
 */

#include "base/bell.h"
#include "base/fail.h"
#include "base/logger.h"

#include <stdbool.h>

#define GS_TOKEN_MAX 120

/* Memory that all ranks of a host can read and write. The token is how the others find it. */
typedef struct gs_segment {
    void *base;
    size_t bytes;
    char token[GS_TOKEN_MAX];
    intptr_t handle;
} gs_segment;

/* One message between the first ranks of two hosts. */
typedef struct gs_net_transfer {
    void *buffer;
    size_t bytes;
    int host; /* the other side */
    bool is_send;
} gs_net_transfer;

/* Messages of a stream between two hosts arrive in the order of posting, whatever the other streams do. Of parts and
 * sums several posts may be under way, each in a slot of its own. */
typedef enum gs_net_stream { GS_NET_WHOLE, GS_NET_PARTS, GS_NET_SUMS, GS_NET_STREAMS } gs_net_stream;
enum { GS_NET_WINDOW = 32 };

/* The most that one post of a stream carries: so many transfers of so many bytes. */
typedef struct gs_net_load {
    size_t transfers_max;
    size_t bytes_max;
} gs_net_load;

typedef struct gs_group gs_group;
typedef struct gs_net gs_net; /* the messages of one lane; NULL on one host */

typedef struct gs_transport_ops {
    const char *name;
    /* Capabilities. */
    bool shares_address_space; /* peers can read each other's private memory */

    /* The host's first rank: `bytes` of zeroed memory and a token. */
    gsync_status (*segment_create)(void *transport, size_t bytes, gs_segment *segment);
    /* The others: map what the token names. */
    gsync_status (*segment_attach)(const char *token, size_t bytes, gs_segment *segment);
    /* The host's first rank, when all have attached: the token is no longer needed. */
    void (*segment_settle)(gs_segment *segment);
    /* Every rank on its own, at any time. */
    void (*segment_release)(gs_segment *segment);

    /* Messages, only used where a group has several hosts. net_open allocates what they need, given a load for each
     * stream. net_post starts count transfers; those posted before in this
     * slot are complete. net_test never waits. */
    gsync_status (*net_open)(void *transport, uint32_t lane_id, const gs_net_load *loads, gs_net **net);
    gsync_status (*net_post)(gs_net *net, gs_net_stream stream, uint32_t slot, const gs_net_transfer *transfers,
                             size_t count);
    gsync_status (*net_test)(gs_net *net, gs_net_stream stream, uint32_t slot, bool *is_done);
    uint64_t (*net_bytes_sent)(const gs_net *net); /* so far */
    uint32_t net_window;                           /* pieces of one operation that may be under way; 0: GS_NET_WINDOW */
    /* Collective, over the group's control lane, before a lane that is not that one is used; may be NULL. */
    gsync_status (*net_connect)(gs_group *group, gs_net *net);
    /* The lane has failed for good, and nobody waits for its messages any more. Returns at once; may be NULL. */
    void (*net_give_up)(gs_net *net);
    /* Cancels what is pending. True: the messages' memory may still be touched, so it must not be freed. */
    bool (*net_close)(gs_net *net);

    /* Collective: the ranks with one color become a group, NULL for a negative color. All succeed or none does. own:
     * not GSYNC_OK where this rank can already not make use of it. */
    gsync_status (*split)(gs_group *parent, gsync_status own, int color, int key, gs_group **part);
    void (*destroy)(void *transport);
} gs_transport_ops;

/* A reason why nothing goes on, set once by whoever gives up first. In shared memory. */
typedef struct gs_abort_box {
    _Atomic uint32_t state; /* 0 open, 1 being written, 2 set */
    int32_t rank;
    int32_t status; /* what that rank's operation ended with */
    char text[512];
} gs_abort_box;

/* The start of the group's own segment. */
typedef struct gs_group_shared {
    gs_abort_box abort_box;
    _Alignas(128) gs_bell bells[]; /* one per rank of the host: rung when something may have changed for it */
} gs_group_shared;

/* Machines, which may be several hosts to a group. */
typedef struct gs_machine {
    int rank;  /* this one's place among those of its machine */
    int count; /* machines of all ranks */
} gs_machine;

/* Ranks are seated host by host, inside a host by rank: seat = host_first_seat[host] + local rank. */
struct gs_group {
    int rank;
    int world_size;
    int local_rank;
    int local_count;
    gs_machine machine;
    int host;
    int host_count;
    int *host_first_seat; /* host_count + 1 entries */
    int *rank_of_seat;    /* world_size entries */
    int *seat_of_rank;    /* likewise, the other way round */
    uint32_t timeout_ms;
    gs_logger logger;
    const gs_transport_ops *ops;
    void *transport;
    gs_segment segment;
    gs_group_shared *shared;
    bool allows_helper;      /* a thread of our own may drive the lanes */
    const char *helper_note; /* why, or why not */
    bool is_funneled;        /* only the thread that made the group may drive the lanes */
    struct gs_lane *control; /* for the calls of the communicator itself */
    uint32_t lane_count;     /* lanes opened so far: numbers them alike on all ranks */
    bool is_pinned;          /* a message that cannot be taken back lies in the segment */
};

/* Fills in everything but the control lane, which gs_group_start opens. `hosts[r]` is the host number of rank r, in
 * order of each host's lowest rank. On success the group owns transport and segment. */
gsync_status gs_group_create(gs_group **group, int rank, int world_size, const int *hosts, const gs_transport_ops *ops,
                             void *transport, const gs_segment *segment, uint32_t timeout_ms, const gs_logger *logger);

/* Opens the control lane on memory that the transport prepared together with the group's own (see
 * gs_group_segment_bytes). */
gsync_status gs_group_start(gs_group *group);

/* What the first segment of a group must hold: the shared part and the control lane. */
size_t gs_group_segment_bytes(int local_count, int world_size, int host_count);

/* Not collective, never waits for others. NULL accepted. */
void gs_group_destroy(gs_group *group);

/* Rings the other ranks of this host, and this rank's own sleepers. */
void gs_group_ring_all(gs_group *group);

static inline gs_bell *gs_group_bell(gs_group *group) {
    return &group->shared->bells[group->local_rank];
}

static inline int gs_group_seat(const gs_group *group) {
    return group->seat_of_rank[group->rank];
}

static inline int gs_group_local_to_rank(const gs_group *group, int local_rank) {
    return group->rank_of_seat[group->host_first_seat[group->host] + local_rank];
}

/* What a split needs to know: gathers color and key from all ranks of the parent. members[0 .. *count) become the
 * parent ranks of this rank's color in their new order; *own is this rank's place among them. members has room for
 * the parent's world size. */
gsync_status gs_group_split_members(gs_group *parent, int color, int key, int *members, int *count, int *own);

/* Sets the box unless it is set. */
void gs_abort_box_set(gs_abort_box *box, int rank, gsync_status status, const char *text);
bool gs_abort_box_is_set(const gs_abort_box *box);
/* The failure that a set box means for this rank. */
gsync_status gs_abort_box_fail(const gs_abort_box *box);

#endif
