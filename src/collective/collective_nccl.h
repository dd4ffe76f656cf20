/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_COLLECTIVE_NCCL_H
#define GS_COLLECTIVE_COLLECTIVE_NCCL_H

/*
 * Collectives between the devices of a group's ranks, over NCCL. No NCCL type is named here. NCCL is looked for when it
 * is first needed: in the process, then as a library; a machine without it only lacks what needs it.
 *
 * Everything is queued on the stream that is given, and is on it when a call returns: an event that is recorded
 * afterwards waits for it. The ranks call the same in the same order. Threads may take turns with a communicator; one
 * at a time is in NCCL.
 */

#include "collective/group.h"

typedef struct gs_nccl gs_nccl; /* this rank's part of one NCCL communicator */

/*
 * Collective over the lane, which may be the group's control lane. All ranks end with the same status within the
 * group's timeout, also when only one of them fails. The device that is current is this rank's; bus_id names it: two
 * ranks of one host on one device are refused with both their names, unless allows_shared_device.
 */
typedef struct gs_nccl_wish {
    const char *bus_id; /* NULL: not compared */
    int cta_max;        /* 0: NCCL's choice */
    bool allows_shared_device;
    bool registers;   /* this rank has memory to register */
    gsync_status own; /* not GSYNC_OK: this rank can make no use of it, and the others shall know */
} gs_nccl_wish;
gsync_status gs_nccl_open(gs_group *group, struct gs_lane *lane, const gs_nccl_wish *wish, gs_nccl **nccl);

/*
 * Memory of the device that is current, which can be registered. Uninitialised. GSYNC_ERR_UNSUPPORTED where this NCCL
 * has no such calls. It is freed when no communicator has it registered any more; any device may be current then.
 */
gsync_status gs_nccl_memory_new(void **memory, size_t bytes);
void gs_nccl_memory_free(void *memory);
/* Whether all ranks wish to register: NCCL wants all of them to do it, or none. */
bool gs_nccl_all_register(const gs_nccl *nccl);
/* Not collective. Once for each communicator; ends with it. Collectives then use the same offsets into the memory on
 * all ranks. */
gsync_status gs_nccl_register(gs_nccl *nccl, void *memory, size_t bytes);

/*
 * Not collective. What others do on the communicator ends within the time that is stated; NULL is accepted. What is
 * still queued after a second is aborted. True: also a second later the device is still at it, since something else on
 * it does not end. Memory that was given to the communicator must then not be freed.
 */
bool gs_nccl_close(gs_nccl *nccl);
/* The same, for who would rather not ask: calls `then` when nothing of the communicator is on the device any more, at
 * once or later on a thread of its own. */
typedef void (*gs_nccl_then)(void *argument);
void gs_nccl_close_then(gs_nccl *nccl, gs_nccl_then then, void *argument);

/* In place. The sum in NCCL's own order and, for 16-bit types, precision. Every rank's elements are first multiplied by
 * factor, a power of two that is the same on all ranks: 1 is a plain sum, anything else NCCL's pre-multiplied one. Its
 * operation is made when a factor is first used, and kept. */
gsync_status gs_nccl_all_reduce(gs_nccl *nccl, void *data, size_t count, gsync_dtype dtype, double factor,
                                void *stream);
/* Part r of `from` goes to rank r, and from rank r comes part r of `to`; parts of `bytes` each. */
gsync_status gs_nccl_all_to_all(gs_nccl *nccl, const void *from, void *to, size_t bytes, void *stream);
/* Every rank's part, of `bytes`, which lies at its place in `data` already. In place. */
gsync_status gs_nccl_all_gather(gs_nccl *nccl, void *data, size_t bytes, void *stream);
gsync_status gs_nccl_broadcast(gs_nccl *nccl, void *data, size_t bytes, int root, void *stream);

/* Has anything gone wrong since? Never waits. After anything but GSYNC_OK the communicator can only be aborted.
 * GSYNC_ERR_PEER_LOST where NCCL has lost another rank, GSYNC_ERR_TRANSPORT for what else it says. */
gsync_status gs_nccl_check(gs_nccl *nccl);
/* Ends what is queued, on this rank, very soon; does not wait for it. Idempotent; any thread; NULL accepted. */
void gs_nccl_abort(gs_nccl *nccl);

/* "NCCL 2.28.9 (header 2.28.9) from ..." or why there is none. Valid as long as the process. */
const char *gs_nccl_describe(void);

#endif
