/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: finish=host worlds=2,4 transports=threads,mpi links=internal timeout=60
   gsync-test: wrap=gs_lane_mail,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */

/* GS-49: indices survive the way between ranks, beyond 16 bits and at the end; and one that does not is an error, not
 * an address. */

#include "collective/lane.h"
#include "sync/sparse.h"
#include "wire_step.h"

#include <stdatomic.h>
#include <string.h>

enum { COUNT = 70000, KEPT = 70 };

/* ---- Mail that breaks on its way -------------------------------------------------------------------------------- */

const void *__real_gs_lane_mail(const gs_lane *lane, int rank, size_t *bytes);
const void *__wrap_gs_lane_mail(const gs_lane *lane, int rank, size_t *bytes);

static _Atomic uint32_t bad_index; /* 0: mail is left alone */
static atomic_int is_cut;

/* Of entries, and of nothing else. Every rank has the last element's index changed, or the last entry cut off. */
const void *__wrap_gs_lane_mail(const gs_lane *lane, int rank, size_t *bytes) {
    static _Thread_local gs_sparse_entry entries[KEPT];
    const void *mail = __real_gs_lane_mail(lane, rank, bytes);
    if (*bytes != sizeof entries || rank != 1) {
        return mail;
    }
    memcpy(entries, mail, sizeof entries);
    if (atomic_load(&bad_index) != 0) {
        entries[KEPT - 1].index = atomic_load(&bad_index);
    }
    *bytes -= atomic_load(&is_cut) != 0 ? sizeof *entries : 0;
    return entries;
}

/* ---- What travels ------------------------------------------------------------------------------------------------ */

static ranks_model *open_model(ranks_context *ctx) {
    const size_t count = COUNT;
    gsync_wire_options wire_options = wire_step_options();
    gsync_options options = GSYNC_OPTIONS_INIT;
    wire_options.density = 0.001;
    options.op = GSYNC_SUM;
    return wire_step_model(ctx, &count, 1, GSYNC_FLOAT32, GSYNC_WIRE_TOPK, &wire_options, &options);
}

/* Rank r's 70 largest end r elements before the last one of all. */
static void fill(ranks_model *model, int rank) {
    wire_step_set(model, 0, 0.001);
    for (size_t k = 0; k < KEPT; k++) {
        ((float *)model->tensors[0].grad)[COUNT - 1 - (size_t)rank - k * 997] = (float)(rank + 1);
    }
}

static double expected_at(size_t element, int world, int absent) {
    double sum = 0;
    for (int rank = 0; rank < world; rank++) {
        const size_t before_last = COUNT - 1 - element;
        const bool is_kept = before_last >= (size_t)rank && (before_last - (size_t)rank) % 997 == 0 &&
                             (before_last - (size_t)rank) / 997 < KEPT;
        sum += is_kept && rank != absent ? rank + 1 : 0;
    }
    return sum;
}

static void check_result(const ranks_model *model, int absent) {
    for (size_t k = 0; k < COUNT; k++) {
        CHECK_REAL(wire_step_get(model, 0, k), expected_at(k, model->ctx->world, absent));
    }
    CHECK_GUARDS(model->ctx);
}

static void GS_49_indices_beyond_16_bits_arrive(ranks_context *ctx) {
    ranks_model *model = open_model(ctx);
    REQUIRE(!ranks_has_failed(ctx));
    for (int step = 0; step < 2; step++) {
        fill(model, ctx->rank);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        check_result(model, -1);
    }
}

static void GS_49_a_rank_may_send_none(ranks_context *ctx) {
    ranks_model *model = open_model(ctx);
    REQUIRE(!ranks_has_failed(ctx));
    for (int absent = 0; absent < ctx->world; absent++) {
        fill(model, ctx->rank);
        REQUIRE_OK(ctx->rank == absent ? gsync_finish_empty(model->reducer, NULL)
                                       : ranks_model_step(model, NULL, NULL));
        check_result(model, absent);
    }
}

/* All ranks get the same mail, so all fail. */
static void spoil(ranks_context *ctx, uint32_t index, int cut, const char *words) {
    ranks_model *model = open_model(ctx);
    REQUIRE(!ranks_has_failed(ctx));
    fill(model, ctx->rank);
    REQUIRE(ranks_meet(ctx));
    atomic_store(&bad_index, index);
    atomic_store(&is_cut, cut);
    const gsync_status status = ranks_model_step(model, NULL, NULL);
    CHECK_STATUS(status, GSYNC_ERR_TRANSPORT);
    CHECK_CONTAINS(gsync_last_error(), words);
    ranks_meet(ctx);
    atomic_store(&bad_index, 0);
    atomic_store(&is_cut, 0);
    CHECK_GUARDS(ctx);
    CHECK_REAL(wire_step_get(model, 0, COUNT - 1 - (size_t)ctx->rank), ctx->rank + 1);
    gsync_reducer_destroy(&model->reducer);
    ranks_meet(ctx);
}

static void GS_49_an_index_behind_the_end_is_an_error_and_not_an_address(ranks_context *ctx) {
    spoil(ctx, COUNT, 0, "gradient 'p0': rank 1 sent element 70000 of 70000");
    spoil(ctx, UINT32_MAX, 0, "gradient 'p0': rank 1 sent element 4294967295 of 70000");
}

static void GS_49_so_are_too_few_entries(ranks_context *ctx) {
    spoil(ctx, 0, 1, "rank 1 sent 69 of 70 entries");
}

RANKS_MAIN(RANKS_TEST(GS_49_indices_beyond_16_bits_arrive), RANKS_TEST(GS_49_a_rank_may_send_none),
           RANKS_TEST_WITH(GS_49_an_index_behind_the_end_is_an_error_and_not_an_address,
                           .host_only = "it damages what travels between hosts; a GPU's kernels have unit tests"),
           RANKS_TEST_WITH(GS_49_so_are_too_few_entries, .host_only = "as many as the plan says travel between GPUs"))
