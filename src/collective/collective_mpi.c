/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/collective_mpi.h"

#include "base/clock.h"
#include "base/memory.h"
#include "collective/lane.h"
#include "collective/messages_mpi.h"
#include "collective/shared_memory.h"

#include <assert.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct mpi_transport {
    MPI_Comm comm;  /* all ranks of the group */
    MPI_Comm hosts; /* the first ranks of the hosts, in the order of hosts; MPI_COMM_NULL on the others */
    gs_shared_memory_kind kind;
    uint32_t ranks_per_host;
    uint32_t timeout_ms;
    bool has_messages; /* of ours, over hosts */
    bool is_abandoned; /* MPI may still write into it */
    int own_status;    /* what the ranks agree on */
    int worst_status;
} mpi_transport;

gsync_status gs_mpi_translate(int code, const char *call) {
    if (code == MPI_SUCCESS) {
        return GSYNC_OK;
    }
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return gs_fail(GSYNC_ERR_TRANSPORT, "%s failed: %s", call, text);
}

static bool is_finalized(void) {
    int flag = 0;
    MPI_Finalized(&flag);
    return flag != 0;
}

/* ---- which MPI ---- */

#if defined(OPEN_MPI)
#define MPI_OF_HEADER "Open MPI"
static const bool is_header_open_mpi = true;
#else
#define MPI_OF_HEADER "an MPI of MPICH's family"
static const bool is_header_open_mpi = false;
#endif
enum { LIBRARY_TEXT_BYTES = 8192 }; /* MPICH's; Open MPI's own limit is 256 */

/* Handles are pointers in Open MPI and numbers in the others: with the wrong one, calls with them crash. This call has
 * none, and may come before MPI_Init. */
gsync_status gs_mpi_check_library(void) {
    char text[LIBRARY_TEXT_BYTES] = "";
    int length = 0;
    TRY_MPI(MPI_Get_library_version(text, &length));
    if ((strstr(text, "Open MPI") != NULL) == is_header_open_mpi) {
        return GSYNC_OK;
    }
    return gs_fail(GSYNC_ERR_UNSUPPORTED,
                   "the library was built with the mpi.h of %s, but this process has loaded \"%.*s\": run it with the "
                   "mpirun and libraries that it was built with, or build it with those of this process",
                   MPI_OF_HEADER, (int)strcspn(text, "\n,"), text);
}

/* ---- starting and ending MPI ---- */

static void finalize_at_exit(void) {
    if (!is_finalized()) {
        MPI_Finalize();
    }
}

#if defined(__GLIBC__)
/* A rank that fails must not wait in MPI_Finalize for ranks that wait for it; the launcher then ends the job. */
static void finalize_on_exit(int code, void *unused) {
    (void)unused;
    if (code == 0) {
        finalize_at_exit();
    }
}

static int arrange_finalize(void) {
    return on_exit(finalize_on_exit, NULL);
}
#else
static int arrange_finalize(void) {
    return atexit(finalize_at_exit);
}
#endif

bool gs_mpi_is_running(void) {
    int is_initialized = 0;
    MPI_Initialized(&is_initialized);
    return is_initialized != 0 && !is_finalized();
}

gsync_status gs_mpi_ensure_initialized(void) {
    int is_initialized = 0;
    GS_TRY(gs_mpi_check_library());
    TRY_MPI(MPI_Initialized(&is_initialized));
    if (is_finalized()) {
        return gs_fail(GSYNC_ERR_STATE, "MPI was already finalized: create communicators before MPI_Finalize");
    }
    if (is_initialized) {
        return GSYNC_OK;
    }
    int level;
    TRY_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level));
    if (arrange_finalize() != 0) {
        return gs_fail(GSYNC_ERR_MEMORY, "no room to register MPI_Finalize for the exit of the process");
    }
    return GSYNC_OK;
}

/* ---- segments ---- */

static gsync_status segment_create(void *transport, size_t bytes, gs_segment *segment) {
    return gs_shared_memory_create(((mpi_transport *)transport)->kind, bytes, segment);
}

/* ---- messages between hosts ---- */

static gsync_status net_open(void *pointer, uint32_t lane_id, const gs_net_load *loads, gs_net **net) {
    mpi_transport *transport = pointer;
    transport->has_messages = true;
    return gs_messages_open(&transport->hosts, lane_id, loads, net);
}

/* ---- making a group ---- */

/* For a rank without memory, which takes part until the others know: MPI cannot leave out a rank, not even later. */
static _Thread_local mpi_transport stand_in;

static void destroy(void *pointer) {
    mpi_transport *transport = pointer;
    if (!transport->is_abandoned && !is_finalized()) {
        /* One that carried messages is lost to MPI until the end. A rank that leaves does not know what others still
         * send it, and MPI would give the communicator's number, and then those messages, to a later one. */
        if (transport->hosts != MPI_COMM_NULL && !transport->has_messages) {
            MPI_Comm_free(&transport->hosts);
        }
        if (transport->comm != MPI_COMM_NULL) {
            MPI_Comm_free(&transport->comm);
        }
    }
    if (!transport->is_abandoned && transport != &stand_in) {
        gs_memory_free(transport);
    }
}

/* The blocking calls of MPI would wait for ever for a rank that never comes. After this all are there. */
static gsync_status wait_for_all(mpi_transport *transport, MPI_Request *request) {
    const uint64_t deadline = gs_clock_ns() + (uint64_t)transport->timeout_ms * 1000000u;
    int is_done = 0;
    for (int tries = 0; !is_done; tries++) {
        TRY_MPI(MPI_Test(request, &is_done, MPI_STATUS_IGNORE));
        if (!is_done && gs_clock_ns() > deadline) {
            transport->is_abandoned = true;
            return gs_fail(GSYNC_ERR_TIMEOUT,
                           "not all ranks created the communicator within %u ms: look for an error or a hang there, or "
                           "raise timeout_ms",
                           transport->timeout_ms);
        }
        if (tries > 100) {
            const struct timespec nap = {0, 100000};
            nanosleep(&nap, NULL);
        }
    }
    return GSYNC_OK;
}

static gsync_status duplicate(MPI_Comm from, mpi_transport *transport) {
    MPI_Request request;
    TRY_MPI(MPI_Comm_idup(from, &transport->comm, &request));
    GS_TRY(wait_for_all(transport, &request));
    return gs_mpi_translate(MPI_Comm_set_errhandler(transport->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

/* All ranks return GSYNC_OK or none does. Between collective calls of MPI, which would wait for a rank that gave up. */
static gsync_status agree(mpi_transport *transport, gsync_status own) {
    MPI_Request request;
    transport->own_status = (int)own;
    TRY_MPI(MPI_Iallreduce(&transport->own_status, &transport->worst_status, 1, MPI_INT, MPI_MIN, transport->comm,
                           &request));
    GS_TRY(wait_for_all(transport, &request));
    if (transport->worst_status == (int)own) {
        return own;
    }
    return gs_fail((gsync_status)transport->worst_status,
                   "another rank could not create its communicator; its own error tells why");
}

/* Which of the ranks that share memory are called one host: all, or every ranks_per_host of them. */
static gsync_status find_host_comm(MPI_Comm comm, uint32_t ranks_per_host, MPI_Comm *host) {
    MPI_Comm node;
    int rank;
    int node_rank;
    TRY_MPI(MPI_Comm_rank(comm, &rank));
    TRY_MPI(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node));
    TRY_MPI(MPI_Comm_rank(node, &node_rank));
    const int part = ranks_per_host == 0 ? 0 : (int)((uint32_t)node_rank / ranks_per_host);
    const int code = MPI_Comm_split(node, part, rank, host);
    MPI_Comm_free(&node);
    return gs_mpi_translate(code, "MPI_Comm_split");
}

/* Numbers the hosts in the order of their lowest ranks. first_of[r] is the lowest rank on r's host. */
static void number_hosts(const int *first_of, int world_size, int *hosts) {
    int count = 0;
    for (int rank = 0; rank < world_size; rank++) {
        hosts[rank] = first_of[rank] == rank ? count++ : hosts[first_of[rank]];
    }
}

/* The group's first segment with one kind of memory. */
static gsync_status try_segment(mpi_transport *transport, MPI_Comm host, size_t bytes, gs_segment *segment) {
    int local_rank;
    TRY_MPI(MPI_Comm_rank(host, &local_rank));
    gsync_status status = local_rank == 0 ? gs_shared_memory_create(transport->kind, bytes, segment) : GSYNC_OK;
    char token[GS_TOKEN_MAX] = "";
    memcpy(token, segment->token, sizeof token);
    TRY_MPI(MPI_Bcast(token, GS_TOKEN_MAX, MPI_CHAR, 0, host));
    if (local_rank != 0 && token[0] != '\0') {
        status = gs_shared_memory_attach(token, bytes, segment);
    }
    status = agree(transport, status);
    if (status == GSYNC_OK) {
        gs_shared_memory_settle(segment);
    } else {
        gs_shared_memory_release(segment);
    }
    return status;
}

static gsync_status make_segment(mpi_transport *transport, MPI_Comm host, size_t bytes, gs_segment *segment) {
    gsync_status status = GSYNC_ERR_INTERNAL;
    for (int kind = 0; kind < GS_SHARED_MEMORY_KINDS && status != GSYNC_OK; kind++) {
        transport->kind = (gs_shared_memory_kind)kind;
        status = try_segment(transport, host, bytes, segment);
    }
    if (status != GSYNC_OK) {
        gs_fail_prefix("the ranks of a host cannot share memory, neither through /proc nor through /dev/shm: ");
    }
    return status;
}

static void note_thread_level(gs_group *group) {
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    const bool is_alone = group->host_count == 1;
    group->allows_helper = level >= MPI_THREAD_SERIALIZED || (level == MPI_THREAD_FUNNELED && is_alone);
    group->is_funneled = level < MPI_THREAD_SERIALIZED && !is_alone;
    group->helper_note = level == MPI_THREAD_SINGLE     ? "MPI_THREAD_SINGLE"
                         : level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                                        : "MPI offers threads";
}

static gsync_status split_group(gs_group *parent, gsync_status own, int color, int key, gs_group **part);

static const gs_transport_ops mpi_ops = {
    .name = "mpi",
    .shares_address_space = false,
    .segment_create = segment_create,
    .segment_attach = gs_shared_memory_attach,
    .segment_settle = gs_shared_memory_settle,
    .segment_release = gs_shared_memory_release,
    .net_open = net_open,
    .net_post = gs_messages_post,
    .net_bytes_sent = gs_messages_bytes_sent,
    .net_test = gs_messages_test,
    .net_close = gs_messages_close,
    .split = split_group,
    .destroy = destroy,
};

/* The numbers of everything, then the segment, then the group, which takes over the transport if it succeeds. */
static gsync_status assemble(mpi_transport *transport, MPI_Comm host, int *first_of, int *hosts,
                             const gs_mpi_settings *settings, gs_group **out) {
    int rank;
    int world_size;
    int local_count;
    TRY_MPI(MPI_Comm_rank(transport->comm, &rank));
    TRY_MPI(MPI_Comm_size(transport->comm, &world_size));
    TRY_MPI(MPI_Comm_size(host, &local_count));
    int first = rank;
    TRY_MPI(MPI_Bcast(&first, 1, MPI_INT, 0, host));
    TRY_MPI(MPI_Allgather(&first, 1, MPI_INT, first_of, 1, MPI_INT, transport->comm));
    assert(first_of != NULL && hosts != NULL);
    number_hosts(first_of, world_size, hosts);
    int host_count = 0;
    for (int i = 0; i < world_size; i++) {
        host_count += first_of[i] == i;
    }
    TRY_MPI(MPI_Comm_split(transport->comm, first == rank ? 0 : MPI_UNDEFINED, rank, &transport->hosts));
    gs_segment segment = {0};
    const size_t bytes = gs_group_segment_bytes(local_count, world_size, host_count);
    GS_TRY(make_segment(transport, host, bytes, &segment));
    const gsync_status status = gs_group_create(out, rank, world_size, hosts, &mpi_ops, transport, &segment,
                                                settings->timeout_ms, &settings->logger);
    if (status != GSYNC_OK) {
        gs_shared_memory_release(&segment);
    }
    return status;
}

/* Collective, and not to be entered by some ranks only. *out may be set also when it fails. */
static gsync_status build_group(mpi_transport *transport, int *ints, const gs_mpi_settings *settings, gs_group **out) {
    int world_size;
    MPI_Comm host;
    TRY_MPI(MPI_Comm_size(transport->comm, &world_size));
    GS_TRY(find_host_comm(transport->comm, settings->ranks_per_host, &host));
    const gsync_status status = assemble(transport, host, ints, ints + world_size, settings, out);
    MPI_Comm_free(&host);
    GS_TRY(status);
    note_thread_level(*out);
    return gs_group_start(*out);
}

/* Takes over the transport, also when it fails. own: not GSYNC_OK where this rank can already not make use of it. */
static gsync_status make_group(mpi_transport *transport, gsync_status own, const gs_mpi_settings *settings,
                               gs_group **out) {
    int world_size = 0;
    int *ints = NULL;
    gs_group *group = NULL;
    gsync_status status = gs_mpi_translate(MPI_Comm_size(transport->comm, &world_size), "MPI_Comm_size");
    if (own == GSYNC_OK && status == GSYNC_OK) {
        status = gs_memory_new(&ints, 2 * (size_t)world_size, sizeof *ints, "hosts");
    }
    GS_TRY_OR(agree(transport, own != GSYNC_OK ? own : status), fail);
    status = build_group(transport, ints, settings, &group);
    GS_TRY_OR(agree(transport, status), fail);
    gs_memory_free(ints);
    *out = group;
    return GSYNC_OK;
fail:
    gs_memory_free(ints);
    if (group != NULL) {
        gs_group_destroy(group); /* the transport is its own */
    } else {
        destroy(transport);
    }
    return status;
}

/* *out is set also when it fails. */
static gsync_status new_transport(mpi_transport **out, uint32_t ranks_per_host, uint32_t timeout_ms) {
    *out = &stand_in;
    const gsync_status status = gs_memory_new(out, 1, sizeof **out, "MPI transport");
    **out = (mpi_transport){
        .comm = MPI_COMM_NULL, .hosts = MPI_COMM_NULL, .ranks_per_host = ranks_per_host, .timeout_ms = timeout_ms};
    return status;
}

gsync_status gs_mpi_create(gs_group **group, const void *mpi_comm, gsync_status own, const gs_mpi_settings *settings) {
    const MPI_Comm from = *(const MPI_Comm *)mpi_comm;
    int is_inter = 0;
    if (from == MPI_COMM_NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "the communicator is MPI_COMM_NULL");
    }
    TRY_MPI(MPI_Comm_test_inter(from, &is_inter));
    if (is_inter) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "the communicator is an inter-communicator: give an intra-communicator");
    }
    mpi_transport *transport;
    const gsync_status made = new_transport(&transport, settings->ranks_per_host, settings->timeout_ms);
    const gsync_status status = duplicate(from, transport);
    if (status != GSYNC_OK) {
        destroy(transport);
        return status;
    }
    return make_group(transport, own != GSYNC_OK ? own : made, settings, group);
}

gsync_status gs_mpi_create_world(gs_group **group, gsync_status own, const gs_mpi_settings *settings) {
    const MPI_Comm world = MPI_COMM_WORLD;
    return gs_mpi_create(group, &world, own, settings);
}

/* Takes over the transport, also when it fails. */
static gsync_status make_part(gs_group *parent, mpi_transport *transport, int color, int key, gs_group **part) {
    const mpi_transport *from = parent->transport;
    const int code = MPI_Comm_split(from->comm, color < 0 ? MPI_UNDEFINED : color, key, &transport->comm);
    if (code != MPI_SUCCESS || transport->comm == MPI_COMM_NULL) {
        destroy(transport);
        return gs_mpi_translate(code, "MPI_Comm_split");
    }
    MPI_Comm_set_errhandler(transport->comm, MPI_ERRORS_RETURN);
    const gs_mpi_settings settings = {
        .timeout_ms = parent->timeout_ms, .ranks_per_host = from->ranks_per_host, .logger = parent->logger};
    return make_group(transport, GSYNC_OK, &settings, part);
}

static gsync_status split_group(gs_group *parent, gsync_status own, int color, int key, gs_group **part) {
    mpi_transport *transport;
    gs_group *group = NULL;
    const mpi_transport *from = parent->transport;
    gsync_status status = new_transport(&transport, from->ranks_per_host, parent->timeout_ms);
    /* All ranks are here after this, so that MPI does not wait for a missing one. */
    status = gs_lane_agree(parent->control, "comm_split", own != GSYNC_OK ? own : status, NULL);
    if (status != GSYNC_OK) {
        destroy(transport);
        return status;
    }
    status = make_part(parent, transport, color, key, &group);
    /* Also those who asked for no part learn whether the others have got theirs. */
    status = gs_lane_agree(parent->control, "comm_split", status, NULL);
    if (status == GSYNC_OK) {
        *part = group;
    } else {
        gs_group_destroy(group);
    }
    return status;
}
