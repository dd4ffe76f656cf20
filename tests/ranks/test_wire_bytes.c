/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3,4 transports=mpi timeout=60 */

/* What narrow wires send between hosts, as the transport counted it, is what their formats say, to one in a hundred. */

#include "wire_step.h"

#include <math.h>
#include <string.h>

enum { COUNT = 1 << 20 }; /* 4 MiB */

/* Bytes of one gradient in its format. */
static double encoded_bytes(gsync_wire wire) {
    switch (wire) {
    case GSYNC_WIRE_NATIVE:
        return 4.0 * COUNT;
    case GSYNC_WIRE_FLOAT16:
    case GSYNC_WIRE_BFLOAT16:
        return 2.0 * COUNT;
    case GSYNC_WIRE_INT8:
        return COUNT / 256.0 * 260;
    case GSYNC_WIRE_FLOAT8:
        return COUNT / 256.0 * 257;
    case GSYNC_WIRE_TOPK:
        break;
    }
    return ceil(COUNT * 0.05) * 8;
}

/* A host sends each other host its part of the sum, and the result of its own part. Of the largest elements nothing is
 * added up on the way: all ranks' go to every other host. */
static double bytes_of_host(gsync_wire wire, int hosts, int ranks) {
    const double others = hosts - 1;
    return wire == GSYNC_WIRE_TOPK ? others * ranks * encoded_bytes(wire) : 2 * others / hosts * encoded_bytes(wire);
}

/* In the last step, which is narrow. */
static uint64_t bytes_of_step(ranks_context *ctx, gsync_comm *comm, gsync_wire wire) {
    const size_t counts[] = {1, COUNT - 300000, 299999};
    gsync_wire_options wire_options = wire_step_options();
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    wire_options.density = wire == GSYNC_WIRE_TOPK ? 0.05 : 0;
    options.checks_finite = 1;
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, comm, &options));
    CHECK_OK(gsync_reducer_set_wire(model->reducer, NULL, wire, &wire_options));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    for (uint64_t step = 0; step < 2 && !ranks_has_failed(ctx); step++) {
        for (size_t t = 0; t < 3; t++) {
            wire_step_set(model, t, 0.25 + ctx->rank);
        }
        info = (gsync_step_info)GSYNC_STEP_INFO_INIT;
        CHECK_OK(ranks_model_step(model, NULL, &info));
        CHECK_EQ(info.bytes_reduced, 4 * COUNT);
    }
    gsync_reducer_destroy(&model->reducer);
    return info.bytes_wire;
}

static void check_bytes(ranks_context *ctx, gsync_comm *comm, int ranks_per_host, gsync_wire wire) {
    const int hosts = (ctx->world + ranks_per_host - 1) / ranks_per_host;
    const int host = ctx->rank / ranks_per_host;
    uint64_t all[RANKS_WORLD_MAX];
    const uint64_t mine = bytes_of_step(ctx, comm, wire);
    REQUIRE(ranks_exchange(ctx, &mine, sizeof mine, all));
    double sent = 0;
    int ranks = 0;
    for (int rank = 0; rank < ctx->world; rank++) {
        sent += rank / ranks_per_host == host ? (double)all[rank] : 0;
        ranks += rank / ranks_per_host == host;
    }
    const double formula = bytes_of_host(wire, hosts, ranks);
    if (!(fabs(sent - formula) <= 0.01 * formula)) {
        ranks_fail(__FILE__, __LINE__, "wire %d on %d hosts: %.0f bytes, and not %.0f", (int)wire, hosts, sent,
                   formula);
    }
}

static void check_wires(ranks_context *ctx, int ranks_per_host) {
    gsync_comm_options options = ctx->comm_options;
    gsync_comm *comm = NULL;
    options.ranks_per_host = (uint32_t)ranks_per_host;
    REQUIRE_OK(gsync_comm_create(&comm, &options));
    for (int wire = GSYNC_WIRE_NATIVE; wire <= GSYNC_WIRE_TOPK && !ranks_has_failed(ctx); wire++) {
        check_bytes(ctx, comm, ranks_per_host, (gsync_wire)wire);
    }
    gsync_comm_destroy(&comm);
}

static void each_rank_a_host_sends_what_the_format_says(ranks_context *ctx) {
    check_wires(ctx, 1);
}

static void hosts_of_two_ranks_send_as_much_as_hosts_of_one(ranks_context *ctx) {
    check_wires(ctx, 2);
}

static void on_one_host_nothing_is_sent(ranks_context *ctx) {
    for (int wire = GSYNC_WIRE_NATIVE; wire <= GSYNC_WIRE_TOPK; wire++) {
        CHECK_EQ(bytes_of_step(ctx, ctx->comm, (gsync_wire)wire), 0);
    }
}

RANKS_MAIN(RANKS_TEST_WITH(each_rank_a_host_sends_what_the_format_says, .needs_mpi = true),
           RANKS_TEST_WITH(hosts_of_two_ranks_send_as_much_as_hosts_of_one, .needs_mpi = true, .world_min = 3),
           RANKS_TEST_WITH(on_one_host_nothing_is_sent, .needs_mpi = true))
