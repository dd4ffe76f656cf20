/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_MESSAGES_NCCL_H
#define GS_COLLECTIVE_MESSAGES_NCCL_H

/*
 * The net_ functions of gs_transport_ops over NCCL's send and receive: from host memory through a copy on the device
 * and back. Each lane has a communicator of its own, and one batch of messages under way, so that all ranks queue the
 * same in the same order whatever other lanes do.
 */

#include "collective/collective_nccl.h"
#include "collective/group_nccl.h"

typedef struct gs_nccl_messages_place {
    const gs_nccl_device_ops *ops;
    void *device;
    int world_size;
} gs_nccl_messages_place;

/* Memory, a stream and an event; the communicator comes later. */
gsync_status gs_nccl_messages_open(const gs_nccl_messages_place *place, const gs_net_load *loads, gs_net **net);
/* Takes nccl over. */
void gs_nccl_messages_connect(gs_net *net, gs_nccl *nccl);
gsync_status gs_nccl_messages_post(gs_net *net, gs_net_stream stream, uint32_t slot, const gs_net_transfer *transfers,
                                   size_t count);
gsync_status gs_nccl_messages_test(gs_net *net, gs_net_stream stream, uint32_t slot, bool *is_done);
uint64_t gs_nccl_messages_bytes_sent(const gs_net *net);
void gs_nccl_messages_give_up(gs_net *net);
/* Always false: what NCCL still does, it does in memory of ours. */
bool gs_nccl_messages_close(gs_net *net);

#endif
