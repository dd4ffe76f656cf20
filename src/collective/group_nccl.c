/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/group_nccl.h"

#include "base/memory.h"
#include "collective/internal_nccl.h"
#include "collective/lane.h"
#include "collective/messages_nccl.h"

#include <assert.h>

typedef struct nccl_transport {
    gs_nccl_settings settings;
    int world_size;
    gs_nccl *control; /* until the control lane has it */
} nccl_transport;

/* ---- segments: nobody else on this host, so memory of this rank ---- */

static gsync_status segment_create(void *transport, size_t bytes, gs_segment *segment) {
    (void)transport;
    GS_TRY(gs_memory_new_aligned(&segment->base, bytes, "memory of a rank"));
    segment->bytes = bytes;
    return GSYNC_OK;
}

static gsync_status segment_attach(const char *token, size_t bytes, gs_segment *segment) {
    (void)token, (void)bytes, (void)segment;
    return gs_fail(GSYNC_ERR_INTERNAL, "a rank over NCCL shares memory with nobody");
}

static void segment_settle(gs_segment *segment) {
    (void)segment;
}

static void segment_release(gs_segment *segment) {
    gs_memory_free(segment->base);
    segment->base = NULL;
}

/* ---- messages ---- */

/* A message needs few of the device's processors, and one that waits for its peer keeps them. */
enum { MESSAGE_CTAS = 1 };

static gs_nccl_wish wish_of(const gs_nccl_settings *settings) {
    return (gs_nccl_wish){.bus_id = settings->device != NULL ? settings->ops->bus_id(settings->device) : NULL,
                          .cta_max = MESSAGE_CTAS,
                          .allows_shared_device = settings->allows_shared_device,
                          .own = settings->own};
}

static gsync_status net_open(void *pointer, uint32_t lane_id, const gs_net_load *loads, gs_net **net) {
    nccl_transport *transport = pointer;
    const gs_nccl_messages_place place = {
        .ops = transport->settings.ops, .device = transport->settings.device, .world_size = transport->world_size};
    GS_TRY(gs_nccl_messages_open(&place, loads, net));
    if (lane_id == 0) {
        gs_nccl_messages_connect(*net, transport->control);
        transport->control = NULL;
    }
    return GSYNC_OK;
}

static gsync_status net_connect(gs_group *group, gs_net *net) {
    const nccl_transport *transport = group->transport;
    const gs_nccl_wish wish = wish_of(&transport->settings);
    gs_nccl *nccl = NULL;
    GS_TRY(gs_nccl_open(group, group->control, &wish, &nccl));
    gs_nccl_messages_connect(net, nccl);
    return GSYNC_OK;
}

/* ---- groups ---- */

static void destroy(void *pointer) {
    nccl_transport *transport = pointer;
    gs_nccl_abort(transport->control);
    (void)gs_nccl_close(transport->control);
    if (transport->settings.device != NULL) {
        transport->settings.ops->release(transport->settings.device);
    }
    gs_memory_free(transport);
}

static gsync_status split_group(gs_group *parent, gsync_status own, int color, int key, gs_group **part);

static const gs_transport_ops nccl_ops = {
    .name = "nccl",
    .shares_address_space = false,
    .net_window = 1,
    .segment_create = segment_create,
    .segment_attach = segment_attach,
    .segment_settle = segment_settle,
    .segment_release = segment_release,
    .net_open = net_open,
    .net_connect = net_connect,
    .net_post = gs_nccl_messages_post,
    .net_test = gs_nccl_messages_test,
    .net_bytes_sent = gs_nccl_messages_bytes_sent,
    .net_give_up = gs_nccl_messages_give_up,
    .net_close = gs_nccl_messages_close,
    .split = split_group,
    .destroy = destroy,
};

static gsync_status new_transport(nccl_transport **out, const gs_nccl_settings *settings) {
    GS_TRY(gs_memory_new(out, 1, sizeof **out, "NCCL transport"));
    (*out)->settings = *settings;
    if (settings->device != NULL) {
        settings->ops->hold(settings->device);
    }
    return GSYNC_OK;
}

/* Takes over the transport if it succeeds. */
static gsync_status assemble(nccl_transport *transport, int rank, gs_group **out) {
    const int world_size = transport->world_size;
    int *hosts = NULL;
    gs_segment segment = {0};
    GS_TRY(segment_create(transport, gs_group_segment_bytes(1, world_size, world_size), &segment));
    gsync_status status = gs_memory_new(&hosts, (size_t)world_size, sizeof *hosts, "hosts");
    if (status == GSYNC_OK) {
        for (int i = 0; i < world_size; i++) {
            hosts[i] = i;
        }
        status = gs_group_create(out, rank, world_size, hosts, &nccl_ops, transport, &segment,
                                 transport->settings.timeout_ms, &transport->settings.logger);
    }
    gs_memory_free(hosts);
    if (status != GSYNC_OK) {
        segment_release(&segment);
    }
    return status;
}

/* Takes over transport and nccl, also when it fails. */
static gsync_status make_group(nccl_transport *transport, gs_nccl *nccl, gs_group **out) {
    gs_group *group = NULL;
    const int rank = nccl->rank;
    transport->control = nccl;
    transport->world_size = nccl->world_size;
    gsync_status status = assemble(transport, rank, &group);
    if (status != GSYNC_OK) {
        destroy(transport);
        return status;
    }
    group->machine = nccl->machine;
    group->allows_helper = true;
    group->helper_note = "NCCL takes turns of threads";
    status = gs_group_start(group);
    if (status != GSYNC_OK) {
        gs_group_destroy(group);
        return status;
    }
    *out = group;
    return GSYNC_OK;
}

/* The first thing that ranks with a communicator do: who are we? */
static gsync_status introduce(gs_group *group, const gs_nccl_settings *settings) {
    const gs_nccl_part all = {.count = group->world_size, .own = group->rank};
    const gs_nccl_wish wish = wish_of(settings);
    return gs_nccl_introduce(group->control, &all, &wish, &group->machine);
}

/* Takes over transport and nccl, also when it fails. */
static gsync_status start_group(nccl_transport *transport, gs_nccl *nccl, gs_group **out) {
    const gs_nccl_settings settings = transport->settings;
    gs_group *group = NULL;
    GS_TRY(make_group(transport, nccl, &group));
    const gsync_status status = introduce(group, &settings);
    if (status != GSYNC_OK) {
        gs_group_destroy(group);
        return status;
    }
    *out = group;
    return GSYNC_OK;
}

/* ---- the first group of its ranks ---- */

gsync_status gs_nccl_group_of_world(gs_group **group, const gs_nccl_world *world, const gs_nccl_settings *settings) {
    nccl_transport *transport = NULL;
    gs_nccl *nccl = NULL;
    GS_TRY(settings->own);
    GS_TRY(new_transport(&transport, settings));
    const gsync_status status = gs_nccl_connect(world, MESSAGE_CTAS, settings->timeout_ms, &nccl);
    if (status != GSYNC_OK) {
        destroy(transport);
        return status;
    }
    assert(transport != NULL && nccl != NULL);
    return start_group(transport, nccl, group);
}

gsync_status gs_nccl_group_of_comm(gs_group **group, void *comm, const gs_nccl_settings *settings) {
    nccl_transport *transport = NULL;
    gs_nccl *nccl = NULL;
    gsync_status status = settings->own;
    if (status == GSYNC_OK) {
        status = new_transport(&transport, settings);
    }
    status = gs_nccl_adopt(comm, status, settings, MESSAGE_CTAS, &nccl);
    if (status != GSYNC_OK) {
        if (transport != NULL) {
            destroy(transport);
        }
        return status;
    }
    assert(transport != NULL && nccl != NULL);
    return start_group(transport, nccl, group);
}

/* ---- splitting ---- */

/* Takes over transport, also when it fails. */
static gsync_status make_part(gs_group *parent, nccl_transport *transport, const gs_nccl_part *place, gs_group **part) {
    const gs_nccl_wish wish = wish_of(&transport->settings);
    gs_nccl *nccl = NULL;
    const gsync_status status = gs_nccl_meet(parent->control, parent->timeout_ms, place, &wish, &nccl);
    if (status != GSYNC_OK || nccl == NULL) {
        destroy(transport);
        return status;
    }
    return make_group(transport, nccl, part);
}

/* Where this rank will be. A negative color belongs to no part. */
static gsync_status find_place(gs_group *parent, int color, int key, int *members, gs_nccl_part *place) {
    GS_TRY(gs_group_split_members(parent, color, key, members, &place->count, &place->own));
    place->members = members;
    place->own = color >= 0 ? place->own : -1;
    return GSYNC_OK;
}

static gsync_status split_group(gs_group *parent, gsync_status own, int color, int key, gs_group **part) {
    const nccl_transport *from = parent->transport;
    nccl_transport *transport = NULL;
    gs_nccl_part place = {.own = -1};
    gs_group *group = NULL;
    int *members = NULL;
    gsync_status status = own;
    if (status == GSYNC_OK) {
        status = gs_memory_new(&members, (size_t)parent->world_size, sizeof *members, "members");
    }
    if (status == GSYNC_OK) {
        status = new_transport(&transport, &from->settings);
    }
    GS_TRY_OR(gs_lane_agree(parent->control, "comm_split", status, NULL), done);
    GS_TRY_OR(find_place(parent, color, key, members, &place), done);
    assert(transport != NULL);
    status = make_part(parent, transport, &place, &group);
    transport = NULL;
    status = gs_lane_agree(parent->control, "comm_split", status, NULL);
    if (status == GSYNC_OK) {
        *part = group;
    } else {
        gs_group_destroy(group);
    }
done:
    if (transport != NULL) {
        destroy(transport);
    }
    gs_memory_free(members);
    return status;
}
