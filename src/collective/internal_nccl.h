/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_INTERNAL_NCCL_H
#define GS_COLLECTIVE_INTERNAL_NCCL_H

/* What the files that speak to NCCL share. Included by those only. */

#include "base/logger.h"
#include "collective/collective_nccl.h"
#include "collective/group_nccl.h"
#include "collective/library_nccl.h"

#include <pthread.h>
#include <stdatomic.h>

/* A pre-multiplied sum that was made for this communicator. */
typedef struct gs_nccl_op {
    double factor;
    ncclDataType_t type;
    ncclRedOp_t op;
} gs_nccl_op;
enum { GS_NCCL_OPS_MAX = 8 };

struct gs_nccl {
    const gs_nccl_library *library;
    ncclComm_t comm; /* never blocking. NULL: not begun, or ended */
    int rank;
    int world_size;
    gs_machine machine; /* of its ranks, where they have met */
    uint32_t timeout_ms;
    pthread_mutex_t calls; /* held by whoever is in NCCL with it */
    gs_nccl_op ops[GS_NCCL_OPS_MAX];
    size_t op_count;
    bool all_register;
    void *registration; /* NULL: none */

    /* How it ends: on a thread of its own, since NCCL may keep whoever ends a communicator waiting. */
    _Atomic int is_ending;  /* no call begins any more, and who waits in one gives up */
    _Atomic int is_hurried; /* what is queued is aborted, not waited for */
    pthread_mutex_t gate;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread; /* all under gate */
    bool has_ended;
    bool is_left; /* the thread frees it */
    gs_nccl_then then;
    void *argument;
};

/* register_nccl.c. Before the communicator ends, with nothing under way. */
void gs_nccl_deregister(gs_nccl *nccl);

/* life_nccl.c */
gsync_status gs_nccl_new(gs_nccl **nccl, int world_size, int rank, uint32_t timeout_ms);
/* address: where rank 0 listens, "host:port"; NULL: where NCCL likes. */
gsync_status gs_nccl_make_id(const gs_nccl_library *library, const char *address, ncclUniqueId *id);
/* Starts to make the communicator; *is_going_on: gs_nccl_poll will tell whether that works. */
gsync_status gs_nccl_begin(gs_nccl *nccl, const ncclUniqueId *id, const char *address, int cta_max, bool *is_going_on);
ncclConfig_t gs_nccl_config(int cta_max);

/* While one is entered, NCCL finds this address, or none, in the process's environment. */
typedef struct gs_nccl_environment {
    bool is_changed;
    bool had_address;
    char address[256];
} gs_nccl_environment;
void gs_nccl_environment_enter(gs_nccl_environment *environment, const char *address);
void gs_nccl_environment_leave(const gs_nccl_environment *environment);

/* call_nccl.c: one call at a time. enter fails once the communicator is ending. */
gsync_status gs_nccl_enter(gs_nccl *nccl);
void gs_nccl_leave(gs_nccl *nccl);
/* Inside: what the call returned, or, if that was ncclInProgress, what comes of it. */
gsync_status gs_nccl_settle(gs_nccl *nccl, ncclResult_t result, const char *call);
/* Whether what was begun last is still going on. Never waits; what went wrong since is the status. */
gsync_status gs_nccl_poll(gs_nccl *nccl, bool *is_going_on);
/* Puts NCCL's code and words into ours. rank < 0: none yet. */
gsync_status gs_nccl_translate(const gs_nccl_library *library, ncclComm_t comm, int rank, ncclResult_t result,
                               const char *call);
/* A moment between two looks. */
void gs_nccl_nap(void);

/* collective_nccl.c: data that goes to, and comes from, single ranks. */
typedef struct gs_nccl_message {
    void *data; /* on the device */
    size_t bytes;
    int peer;
    bool is_send;
} gs_nccl_message;
/* All at once. Does not wait until they are queued: gs_nccl_poll tells. */
gsync_status gs_nccl_exchange(gs_nccl *nccl, const gs_nccl_message *messages, size_t count, void *stream);

/* first_nccl.c: communicators of ranks that have no lane yet. */
gsync_status gs_nccl_connect(const gs_nccl_world *world, int cta_max, uint32_t timeout_ms, gs_nccl **nccl);
/* Splits one off from comm, an ncclComm_t. own: not GSYNC_OK where this rank can make no use of it, and is returned. */
gsync_status gs_nccl_adopt(void *comm, gsync_status own, const gs_nccl_settings *settings, int cta_max, gs_nccl **nccl);

/* meet_nccl.c */
/* Which ranks of the lane's group a communicator is for, in its order. */
typedef struct gs_nccl_part {
    const int *members; /* NULL: all */
    int count;
    int own; /* this rank's place; -1: it takes part without belonging to any */
} gs_nccl_part;
/* As gs_nccl_open; all ranks of the lane call it, each with its own part. *nccl stays NULL for who has none. */
gsync_status gs_nccl_meet(struct gs_lane *lane, uint32_t timeout_ms, const gs_nccl_part *part, const gs_nccl_wish *wish,
                          gs_nccl **nccl);
/* The ranks of a part that has its communicator already compare who they are. */
gsync_status gs_nccl_introduce(struct gs_lane *lane, const gs_nccl_part *part, const gs_nccl_wish *wish,
                               gs_machine *machine);

#endif
