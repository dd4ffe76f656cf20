/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_GROUP_NCCL_H
#define GS_COLLECTIVE_GROUP_NCCL_H

/*
 * Groups whose ranks know each other through NCCL alone: of an ncclComm_t that a trainer has, or of the processes that
 * torchrun started. Each rank is a host of its own, and lanes send their messages with NCCL, see messages_nccl.h. No
 * NCCL type is named here.
 */

#include "collective/group.h"

/* The memory and streams through which messages pass. This room does not know devices, so it is given their calls. */
typedef struct gs_nccl_device_ops {
    gsync_status (*stream_new)(void *device, void **stream);
    void (*stream_free)(void *device, void *stream);
    gsync_status (*event_new)(void *device, void **event);
    void (*event_free)(void *device, void *event);
    gsync_status (*record)(void *device, void *event, void *stream);
    gsync_status (*is_done)(void *device, void *event, bool *is_done);
    gsync_status (*memory_new)(void *device, void **memory, size_t bytes);
    void (*memory_free)(void *device, void *memory);
    gsync_status (*pinned_new)(void *device, void **memory, size_t bytes);
    void (*pinned_free)(void *device, void *memory);
    gsync_status (*copy)(void *device, void *to, const void *from, size_t bytes, void *stream);
    const char *(*bus_id)(void *device);
    /* Groups that are split off, and what still ends on a device, use it as well. */
    void (*hold)(void *device);
    void (*release)(void *device);
} gs_nccl_device_ops;

typedef struct gs_nccl_settings {
    uint32_t timeout_ms;
    gs_logger logger;
    const gs_nccl_device_ops *ops;
    void *device; /* held by whoever needs it; NULL only where own tells why */
    int ordinal;  /* of the device; checked against a communicator's */
    bool allows_shared_device;
    gsync_status own; /* not GSYNC_OK: this rank can make no use of a group, and the others shall know */
} gs_nccl_settings;

/* The processes that say this of themselves. Rank 0 listens at address, "host:port". */
typedef struct gs_nccl_world {
    const char *address;
    int world_size;
    int rank;
} gs_nccl_world;

/* Collective. All ranks succeed or none does. What fails before there is a communicator, the others may learn only at
 * their deadline. */
gsync_status gs_nccl_group_of_world(gs_group **group, const gs_nccl_world *world, const gs_nccl_settings *settings);

/* Collective over the ranks of comm, an ncclComm_t, of which communicators of our own are made; later it is not used.
 */
gsync_status gs_nccl_group_of_comm(gs_group **group, void *comm, const gs_nccl_settings *settings);

#endif
