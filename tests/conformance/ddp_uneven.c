/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: finish=host worlds=2,3,4 transports=threads,mpi timeout=60 */

/* Behaviours 65 to 70 of DistributedDataParallel: ranks with unequal amounts of data (join). README.md lists them all.
 */

#include "small_net.h"

#include <stdio.h>
#include <string.h>

/* One scalar gradient, so that exact values can be said. */
static ranks_model *open_scalar(ranks_context *ctx, gsync_divisor divisor) {
    const size_t count = 1;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.divisor = divisor;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

/* ---- 65
 * ---------------------------------------------------------------------------------------------------------------- */

/* Rank r has r + 1 batches, each with the gradient r + 1. In step s (from 0) ranks s and later still have data. */
static void expect_divided_by(ranks_context *ctx, gsync_divisor mode) {
    ranks_model *model = open_scalar(ctx, mode);
    REQUIRE(!ranks_has_failed(ctx));
    for (int step = 0; step < ctx->world; step++) {
        const bool has_batch = ctx->rank >= step;
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        ranks_store(model->tensors[0].grad, GSYNC_FLOAT32, 0, has_batch ? ctx->rank + 1 : 1e9);
        REQUIRE_OK(has_batch ? ranks_model_step(model, NULL, &info) : gsync_finish_empty(model->reducer, &info));
        double sum = 0;
        for (int rank = step; rank < ctx->world; rank++) {
            sum += rank + 1;
        }
        const int live = ctx->world - step;
        const double divisor = mode == GSYNC_DIVIDE_BY_WORLD ? ctx->world : live;
        CHECK_REAL(ranks_load(model->tensors[0].grad, GSYNC_FLOAT32, 0), (double)(float)(sum / divisor));
        CHECK_EQ(info.participants, live);
        CHECK_REAL(info.divisor, divisor);
    }
}

static void grad_div_uneven_inputs_by_the_world_gives_exact_values(ranks_context *ctx) {
    expect_divided_by(ctx, GSYNC_DIVIDE_BY_WORLD);
}

static void grad_div_uneven_inputs_by_the_live_ranks_gives_exact_values(ranks_context *ctx) {
    expect_divided_by(ctx, GSYNC_DIVIDE_BY_PARTICIPANTS);
}

/* ---- Training until nobody has data
 * ------------------------------------------------------------------------------------- */

enum { BATCH = 3 };

typedef struct course {
    int batches; /* that this rank has */
    int window;  /* micro-batches between two synchronisations */
    gsync_divisor divisor;
    bool is_owned;
    bool finds_unused;
} course;

typedef struct result {
    net trained;
    int steps;
} result;

static ranks_model *open_net(ranks_context *ctx, const course *of, float *grads[NET_TENSORS]) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.divisor = of->divisor;
    options.finds_unused = of->finds_unused;
    options.bucket_bytes_max = 32;
    ranks_model *model = ranks_model_new(ctx, net_counts, NET_TENSORS, GSYNC_FLOAT32);
    for (size_t t = 0; t < NET_TENSORS && of->is_owned; t++) {
        model->tensors[t].grad = NULL;
    }
    if (CHECK_OK(ranks_model_open(model, &options))) {
        net_grads_of(model, grads);
        net_zero(grads);
    }
    return model;
}

/* Up to `window` micro-batches of what is left, then the synchronisation: with the last one, or empty. */
static gsync_status take_window(ranks_model *model, const course *of, const net *mine, float *grads[NET_TENSORS],
                                int *taken) {
    const ranks_context *ctx = model->ctx;
    for (int i = 0; i < of->window && *taken < of->batches; i++) {
        const bool is_last = i == of->window - 1;
        const size_t first = (size_t)(*taken * ctx->world + ctx->rank) * BATCH;
        gsync_status status = gsync_begin(model->reducer, is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE);
        net_backward(mine, grads, ctx->seed, first, BATCH, 1.0 / BATCH);
        for (size_t t = NET_TENSORS; t-- > 0 && status == GSYNC_OK;) {
            status = ranks_model_ready(model, t);
        }
        const gsync_status finish = gsync_finish(model->reducer, NULL);
        (*taken)++;
        if (status != GSYNC_OK || finish != GSYNC_OK || is_last) {
            return status != GSYNC_OK ? status : finish;
        }
    }
    return gsync_finish_empty(model->reducer, NULL);
}

static void train(ranks_context *ctx, const course *of, result *into) {
    float *grads[NET_TENSORS];
    ranks_model *model = open_net(ctx, of, grads);
    int taken = 0;
    REQUIRE(!ranks_has_failed(ctx));
    *into = (result){.steps = 0};
    net_init(&into->trained, ctx->seed);
    for (;;) {
        int all_done = 0;
        REQUIRE_OK(gsync_all_done(ctx->comm, taken >= of->batches, &all_done));
        if (all_done) {
            return;
        }
        net_zero(grads);
        REQUIRE_OK(take_window(model, of, &into->trained, grads, &taken));
        net_descend(&into->trained, grads, 0.05f);
        into->steps++;
        REQUIRE(net_is_replicated(ctx, &into->trained));
    }
}

/* ---- 66
 * ---------------------------------------------------------------------------------------------------------------- */

/* Only the last rank has data at all. Divided by the live ranks, that is training on that rank alone. */
static void join_model_equivalence_with_local_training(ranks_context *ctx) {
    for (int is_owned = 0; is_owned < 2; is_owned++) {
        const course of = {.batches = ctx->rank == ctx->world - 1 ? 12 : 0,
                           .window = 1,
                           .divisor = GSYNC_DIVIDE_BY_PARTICIPANTS,
                           .is_owned = is_owned != 0};
        result got;
        net alone;
        float *grads[NET_TENSORS];
        train(ctx, &of, &got);
        REQUIRE(!ranks_has_failed(ctx));
        CHECK_EQ(got.steps, 12);
        net_grads_new(ctx, grads);
        net_init(&alone, ctx->seed);
        for (int step = 0; step < 12; step++) {
            const size_t first = (size_t)(step * ctx->world + ctx->world - 1) * BATCH;
            net_zero(grads);
            net_backward(&alone, grads, ctx->seed, first, BATCH, 1.0 / BATCH);
            net_descend(&alone, grads, 0.05f);
        }
        CHECK(memcmp(&alone, &got.trained, sizeof alone) == 0); /* zeros were added and 1 divided: no rounding */
    }
}

/* ---- 67
 * ---------------------------------------------------------------------------------------------------------------- */

/* Serial training on the union of what all ranks have, window by window. */
static void train_serially(ranks_context *ctx, const course *of, const int *batches, result *into) {
    float *grads[NET_TENSORS];
    int longest = 0;
    net_grads_new(ctx, grads);
    *into = (result){.steps = 0};
    net_init(&into->trained, ctx->seed);
    for (int rank = 0; rank < ctx->world; rank++) {
        longest = batches[rank] > longest ? batches[rank] : longest;
    }
    for (int begin = 0; begin < longest; begin += of->window) {
        int live = 0;
        for (int rank = 0; rank < ctx->world; rank++) {
            live += batches[rank] > begin;
        }
        const double divisor = of->divisor == GSYNC_DIVIDE_BY_WORLD ? ctx->world : live;
        net_zero(grads);
        for (int rank = 0; rank < ctx->world; rank++) {
            for (int taken = begin; taken < begin + of->window && taken < batches[rank]; taken++) {
                const size_t first = (size_t)(taken * ctx->world + rank) * BATCH;
                net_backward(&into->trained, grads, ctx->seed, first, BATCH, 1.0 / (BATCH * divisor));
            }
        }
        net_descend(&into->trained, grads, 0.05f);
        into->steps++;
    }
}

static void try_course(ranks_context *ctx, course of, int base, int offset) {
    int batches[RANKS_WORLD_MAX];
    result got;
    result expected;
    for (int rank = 0; rank < ctx->world; rank++) {
        batches[rank] = base + offset * rank; /* rank 0 may have nothing at all */
    }
    of.batches = batches[ctx->rank];
    train(ctx, &of, &got);
    REQUIRE(!ranks_has_failed(ctx));
    train_serially(ctx, &of, batches, &expected);
    CHECK_EQ(got.steps, expected.steps);
    CHECK(net_distance(&got.trained, &expected.trained) < 1e-5);
    CHECK_SAME_ON_ALL(ctx, (uint64_t)got.steps);
}

static void uneven_inputs_of_any_length_end_with_the_same_model(ranks_context *ctx) {
    static const int bases[] = {0, 5};
    static const int offsets[] = {2, 3, 10};
    for (int i = 0; i < 12 && !ranks_has_failed(ctx); i++) {
        const course of = {.window = 1,
                           .divisor = i % 2 == 0 ? GSYNC_DIVIDE_BY_WORLD : GSYNC_DIVIDE_BY_PARTICIPANTS,
                           .is_owned = i / 6 == 1,
                           .finds_unused = i % 3 == 1};
        try_course(ctx, of, bases[i % 2], offsets[i % 3]);
    }
}

/* Windows of 2 and 3 micro-batches; what a rank has left over at its end still counts. */
static void uneven_inputs_with_sync_intervals_end_with_the_same_model(ranks_context *ctx) {
    static const int offsets[] = {2, 3, 10};
    for (int i = 0; i < 6 && !ranks_has_failed(ctx); i++) {
        const course of = {.window = 2 + i % 2, .divisor = (gsync_divisor)(i % 2), .is_owned = i % 3 == 2};
        try_course(ctx, of, i / 3 * 5, offsets[i % 3]);
    }
}

/* ---- 68 to 70
 * ---------------------------------------------------------------------------------------------------------- */

/* Where other collectives need all ranks, all of them stop when the first one has run out. */
static void stop_iteration_makes_every_rank_stop_at_the_same_step(ranks_context *ctx) {
    ranks_model *model = open_scalar(ctx, GSYNC_DIVIDE_BY_WORLD);
    const int batches = 3 + 2 * ((ctx->rank + 1) % ctx->world);
    int steps = 0;
    REQUIRE(!ranks_has_failed(ctx));
    for (;;) {
        int32_t has_run_out = steps == batches;
        REQUIRE_OK(gsync_allreduce(ctx->comm, &has_run_out, 1, GSYNC_INT32, GSYNC_MAX));
        if (has_run_out) {
            break;
        }
        ranks_model_fill(model, RANKS_INTEGERS, (uint64_t)steps);
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, (uint64_t)steps);
        steps++;
    }
    CHECK_EQ(steps, 3);
}

/* Without any of this a rank that stops earlier is an error on the others, in time and by name, and no hang. */
static void join_disable_is_an_error_and_no_hang(ranks_context *ctx) {
    ranks_model *model = open_scalar(ctx, GSYNC_DIVIDE_BY_WORLD);
    const bool stops_early = ctx->rank == ctx->world - 1;
    REQUIRE(!ranks_has_failed(ctx));
    for (uint64_t step = 0; step < (stops_early ? 2u : 3u); step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        const gsync_status status = ranks_model_step(model, NULL, NULL);
        if (step < 2) {
            REQUIRE_STATUS(status, GSYNC_OK);
        } else {
            char who[32];
            /* To the others, one that has waited for its GPU in vain is lost. */
            CHECK(status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_ABORTED ||
                  (ctx->is_on_device && status == GSYNC_ERR_PEER_LOST));
            snprintf(who, sizeof who, "rank %d", ctx->world - 1);
            CHECK(!ranks_know_who_is_late(ctx) || strstr(gsync_last_error(), who) != NULL);
            CHECK_CONTAINS(gsync_last_error(), "step 3");
        }
    }
    REQUIRE(ranks_meet(ctx));
}

/* What went wrong on one rank reaches the others in its own words, long before their deadline. */
static void exception_on_one_rank_propagates_with_its_words(ranks_context *ctx) {
    ranks_model *model = open_scalar(ctx, GSYNC_DIVIDE_BY_WORLD);
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    if (ctx->is_on_device) {
        REQUIRE(ranks_meet(ctx)); /* an abort also ends what NCCL is just finishing on other ranks */
    }
    if (ctx->rank == 0) {
        gsync_comm_abort(ctx->comm, "file 17 of the data set is damaged");
    } else {
        const double start = ranks_seconds();
        CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_ABORTED);
        CHECK(ranks_seconds() - start < RANKS_TIMEOUT_MS / 2000.0);
        CHECK_CONTAINS(gsync_last_error(), "rank 0");
        CHECK_CONTAINS(gsync_last_error(), "file 17 of the data set is damaged");
    }
    CHECK_STATUS(gsync_barrier(ctx->comm), GSYNC_ERR_ABORTED);
}

static void finish_empty_is_refused_where_gradients_were_marked(ranks_context *ctx) {
    ranks_model *model = open_scalar(ctx, GSYNC_DIVIDE_BY_WORLD);
    REQUIRE(!ranks_has_failed(ctx));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(ranks_model_ready(model, 0));
    CHECK_STATUS(gsync_finish_empty(model->reducer, NULL), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_ACCUMULATE));
    CHECK_STATUS(gsync_finish_empty(model->reducer, NULL), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC)); /* begun, then no data */
    REQUIRE_OK(gsync_finish_empty(model->reducer, NULL));
    CHECK_EQ(gsync_is_synced(model->reducer), 1);
}

RANKS_MAIN(RANKS_TEST(grad_div_uneven_inputs_by_the_world_gives_exact_values),
           RANKS_TEST(grad_div_uneven_inputs_by_the_live_ranks_gives_exact_values),
           RANKS_TEST(join_model_equivalence_with_local_training),
           RANKS_TEST(uneven_inputs_of_any_length_end_with_the_same_model),
           RANKS_TEST(uneven_inputs_with_sync_intervals_end_with_the_same_model),
           RANKS_TEST(stop_iteration_makes_every_rank_stop_at_the_same_step),
           RANKS_TEST_WITH(join_disable_is_an_error_and_no_hang, .timeout_ms = 1500),
           RANKS_TEST(exception_on_one_rank_propagates_with_its_words),
           RANKS_TEST(finish_empty_is_refused_where_gradients_were_marked))
