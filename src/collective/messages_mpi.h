/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_MESSAGES_MPI_H
#define GS_COLLECTIVE_MESSAGES_MPI_H

/* The net_ functions of gs_transport_ops over MPI point-to-point. This header names no MPI type. */

#include "collective/group.h"

/* hosts points to an MPI_Comm of the hosts' first ranks, in the order of hosts. */
gsync_status gs_messages_open(const void *hosts, uint32_t lane_id, const gs_net_load *loads, gs_net **net);
gsync_status gs_messages_post(gs_net *net, gs_net_stream stream, uint32_t slot, const gs_net_transfer *transfers,
                              size_t count);
gsync_status gs_messages_test(gs_net *net, gs_net_stream stream, uint32_t slot, bool *is_done);
uint64_t gs_messages_bytes_sent(const gs_net *net);
bool gs_messages_close(gs_net *net);

#endif
