/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_COLLECTIVE_NCCL_H
#define GS_COLLECTIVE_COLLECTIVE_NCCL_H

/*
 * Collectives between the devices of a group's ranks, over NCCL. The only file that includes nccl.h, but for what
 * takes an ncclComm_t from the trainer. NCCL is looked for when it is first needed: in the process, then as a library;
 * a machine without it only lacks what needs it.
 *
 * Everything is queued on the stream that is given and returns at once; the ranks call the same in the same order.
 */

#include "collective/group.h"

typedef struct gs_nccl gs_nccl; /* this rank's part of one NCCL communicator */

/* Collective over the lane, which may be the group's control lane; ends by the group's timeout. The device that is
 * current is this rank's; bus_id names it: two ranks of one host on one device are refused with both their names,
 * unless allows_shared_device. */
typedef struct gs_nccl_wish {
    const char *bus_id;
    int cta_max; /* 0: NCCL's choice */
    bool allows_shared_device;
} gs_nccl_wish;
gsync_status gs_nccl_open(gs_group *group, struct gs_lane *lane, const gs_nccl_wish *wish, gs_nccl **nccl);
/* An ncclComm_t of the trainer's, which stays the trainer's. */
gsync_status gs_nccl_adopt(void *comm, uint32_t timeout_ms, const gs_logger *logger, gs_nccl **nccl);
/* Never waits longer than a moment for the others; NULL accepted. What is still queued is aborted. */
void gs_nccl_close(gs_nccl *nccl);

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

/* Has anything gone wrong since? Never waits. After anything but GSYNC_OK the communicator can only be aborted. */
gsync_status gs_nccl_check(gs_nccl *nccl);
/* Ends what is queued, on this rank; idempotent; any thread. */
void gs_nccl_abort(gs_nccl *nccl);

/* "NCCL 2.28.9 (header 2.28.9) from ..." or why there is none. */
const char *gs_nccl_describe(void);

#endif
