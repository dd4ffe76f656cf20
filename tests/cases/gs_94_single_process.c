/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1 transports=single,threads,mpi timeout=60 */

/*
 * GS-94: one process, with or without a launcher, in a build with or without MPI. Everything works, and what the build
 * lacks is said by a status. Codecs, clipping, the loss scale and profiles are in the row and not yet in the library.
 */

#include "late_write.h"
#include "ranks.h"

#include <stdlib.h>

static const size_t counts[] = {6, 100, 1};
#define TENSORS 3

static const gsync_dtype gradient_dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
#define GRADIENT_DTYPES (sizeof(gradient_dtypes) / sizeof(gradient_dtypes[0]))

static void GS_94_the_communicator_is_a_world_of_one(ranks_context *ctx) {
    CHECK_EQ(gsync_rank(ctx->comm), 0);
    CHECK_EQ(gsync_world_size(ctx->comm), 1);
    CHECK_EQ(gsync_local_rank(ctx->comm), 0);
    CHECK_CONTAINS(gsync_comm_describe(ctx->comm), "1 rank on 1 host");
}

static void GS_94_collective_calls_leave_values_as_they_are(ranks_context *ctx) {
    static const gsync_op ops[] = {GSYNC_MEAN, GSYNC_SUM, GSYNC_MIN, GSYNC_MAX};
    const ranks_source source = {.kind = RANKS_FLOATS, .round = 1};
    for (size_t i = 0; i < GRADIENT_DTYPES; i++) {
        void *buffer = ranks_memory(ctx, 50 * gsync_dtype_size(gradient_dtypes[i]));
        ranks_fill(ctx, buffer, 50, gradient_dtypes[i], source);
        for (size_t op = 0; op < 4; op++) {
            CHECK_OK(gsync_allreduce(ctx->comm, buffer, 50, gradient_dtypes[i], ops[op]));
        }
        CHECK_OK(gsync_broadcast(ctx->comm, buffer, 50, gradient_dtypes[i], 0));
        CHECK_OWN(ctx, buffer, 50, gradient_dtypes[i], source);
        const size_t bytes = 50 * gsync_dtype_size(gradient_dtypes[i]);
        const void *const buffers[] = {buffer};
        CHECK_OK(gsync_check_replicas(ctx->comm, NULL, buffers, &bytes, 1));
    }
    CHECK_OK(gsync_barrier(ctx->comm));
    CHECK_STATUS(gsync_broadcast(ctx->comm, NULL, 0, GSYNC_UINT8, 1), GSYNC_ERR_ARGUMENT);
}

static void GS_94_all_done_is_my_own_answer(ranks_context *ctx) {
    int all = -1;
    CHECK_OK(gsync_all_done(ctx->comm, 0, &all));
    CHECK_EQ(all, 0);
    CHECK_OK(gsync_all_done(ctx->comm, 5, &all));
    CHECK_EQ(all, 1);
}

static void GS_94_a_world_of_one_splits_into_itself(ranks_context *ctx) {
    gsync_comm *part = NULL;
    REQUIRE_OK(gsync_comm_split(ctx->comm, 3, 7, &part));
    CHECK_EQ(gsync_world_size(part), 1);
    CHECK_OK(gsync_barrier(part));
    gsync_comm_destroy(&part);
    REQUIRE_OK(gsync_comm_split(ctx->comm, -1, 0, &part));
    CHECK(part == NULL);
}

/* The mean over one rank is the gradient, to the bit, and a weighted mean the gradient over the weight. */
static void GS_94_a_step_returns_the_gradient_itself(ranks_context *ctx) {
    for (int op = GSYNC_MEAN; op <= GSYNC_SUM; op++) {
        for (size_t i = 0; i < GRADIENT_DTYPES; i++) {
            gsync_options options = GSYNC_OPTIONS_INIT;
            gsync_step_info info = GSYNC_STEP_INFO_INIT;
            options.op = (gsync_op)op;
            ranks_model *model = ranks_model_new(ctx, counts, TENSORS, gradient_dtypes[i]);
            REQUIRE_OK(ranks_model_open(model, &options));
            ranks_model_fill(model, RANKS_FLOATS, 1);
            REQUIRE_OK(ranks_model_step(model, NULL, &info));
            CHECK_MODEL_OWN(model, RANKS_FLOATS, 1);
            CHECK_EQ(gsync_is_synced(model->reducer), 1);
            CHECK_EQ(info.participants, 1);
            CHECK_REAL(info.divisor, 1.0);
            CHECK_EQ(info.buckets_reduced, gsync_bucket_count(model->reducer));
        }
    }
}

static void GS_94_a_weighted_mean_divides_by_the_own_weight(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_set_weight(model->reducer, 8.0));
    REQUIRE_OK(gsync_finish(model->reducer, &info));
    CHECK_MODEL(model, RANKS_INTEGERS, 1, 8.0);
    CHECK_REAL(info.weight_total, 8.0);
}

/* Three micro-batches, added up by the trainer or by the library, and averaged or not. */
static void check_window(ranks_context *ctx, gsync_accumulation accumulation, int averages) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = accumulation;
    options.averages_window = averages;
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    float *grad = model->tensors[0].grad;
    REQUIRE_OK(ranks_model_open(model, &options));
    for (size_t i = 0; i < counts[0]; i++) {
        grad[i] = 0.0f;
    }
    for (int batch = 1; batch <= 3; batch++) {
        REQUIRE_OK(gsync_begin(model->reducer, batch == 3 ? GSYNC_SYNC : GSYNC_ACCUMULATE));
        for (size_t i = 0; i < counts[0]; i++) {
            const float add = (float)batch * (float)(i + 3);
            grad[i] = accumulation == GSYNC_CLIENT_ACCUMULATES ? grad[i] + add : add;
        }
        CHECK_OK(gsync_ready(model->reducer, grad));
        REQUIRE_OK(gsync_finish(model->reducer, NULL));
    }
    for (size_t i = 0; i < counts[0]; i++) {
        CHECK_REAL((double)grad[i], (averages ? 2.0 : 6.0) * (double)(i + 3));
    }
}

static void GS_94_windows_are_added_up(ranks_context *ctx) {
    for (int averages = 0; averages <= 1; averages++) {
        check_window(ctx, GSYNC_CLIENT_ACCUMULATES, averages);
        check_window(ctx, GSYNC_CLIENT_OVERWRITES, averages);
    }
}

static void GS_94_joining_with_nothing_gives_zeros(ranks_context *ctx) {
    for (int divisor = GSYNC_DIVIDE_BY_WORLD; divisor <= GSYNC_DIVIDE_BY_PARTICIPANTS; divisor++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.divisor = (gsync_divisor)divisor;
        ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
        REQUIRE_OK(ranks_model_open(model, &options));
        ranks_model_fill(model, RANKS_INTEGERS, 1);
        REQUIRE_OK(gsync_finish_empty(model->reducer, NULL));
        for (size_t i = 0; i < counts[1]; i++) {
            CHECK_REAL(ranks_load(model->tensors[1].grad, GSYNC_FLOAT32, i), 0.0);
        }
    }
}

static void GS_94_the_trainers_mistakes_are_found_alone_too(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    options.checks_writes = 1;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ranks_model_ready(model, 1));
    CHECK_STATUS(ranks_model_ready(model, 1), GSYNC_ERR_ALREADY_READY);
    CHECK_STATUS(gsync_ready(model->reducer, &options), GSYNC_ERR_UNKNOWN_GRADIENT);
    CHECK_OK(ranks_model_ready(model, 2));
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_INCOMPLETE);
    CHECK_CONTAINS(gsync_last_error(), "'p0'");
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    for (size_t i = 0; i < TENSORS; i++) {
        CHECK_OK(ranks_model_ready(model, i));
    }
    ranks_store(model->tensors[1].grad, GSYNC_FLOAT32, 99, 3000.0);
    CHECK_STATUS(gsync_finish(model->reducer, NULL), GSYNC_ERR_CHANGED);
    CHECK_CONTAINS(gsync_last_error(), "'p1'");
}

static void GS_94_unused_and_frozen_gradients_stay_untouched(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    options.op = GSYNC_SUM;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, &options));
    REQUIRE_OK(gsync_reducer_set_trainable(model->reducer, "p2", 0));
    CHECK_STATUS(gsync_begin(model->reducer, GSYNC_SYNC), GSYNC_ERR_STATE);
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    CHECK_OK(ranks_model_ready(model, 1));
    CHECK_STATUS(ranks_model_ready(model, 2), GSYNC_ERR_ARGUMENT);
    REQUIRE_OK(gsync_finish(model->reducer, NULL));
    CHECK_MODEL_OWN(model, RANKS_INTEGERS, 1);
    CHECK_EQ(gsync_is_used(model->reducer, "p0"), 0);
    CHECK_EQ(gsync_is_used(model->reducer, "p1"), 1);
    CHECK_EQ(gsync_is_used(model->reducer, "p9"), -1);
}

static void GS_94_gradients_live_in_the_library_and_move(ranks_context *ctx) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    void *own = model->tensors[1].grad;
    model->tensors[1].grad = NULL;
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    REQUIRE_OK(gsync_reducer_set_uses(model->reducer, "p0", 2));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    model->tensors[1].grad = gsync_reducer_grad(model->reducer, "p1");
    REQUIRE(model->tensors[1].grad != NULL);
    for (uint64_t step = 1; step <= 3; step++) {
        ranks_model_fill(model, RANKS_INTEGERS, step);
        REQUIRE_OK(gsync_begin(model->reducer, GSYNC_SYNC));
        CHECK_OK(ranks_model_ready(model, 0));
        const void *const list[] = {model->tensors[0].grad, model->tensors[1].grad, model->tensors[2].grad};
        CHECK_OK(gsync_ready_list(model->reducer, list, TENSORS));
        REQUIRE_OK(gsync_finish(model->reducer, &info));
        CHECK_MODEL_OWN(model, RANKS_INTEGERS, step);
        if (step == 2) {
            model->tensors[1].grad = own;
            REQUIRE_OK(gsync_reducer_rebind(model->reducer, "p1", own));
        }
    }
}

static void GS_94_the_plan_can_be_looked_at(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_bucket_info bucket = GSYNC_BUCKET_INFO_INIT;
    options.strategy = GSYNC_STRATEGY_FIXED;
    options.bucket_bytes_max = 1;
    options.order = GSYNC_ORDER_REGISTERED;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT64);
    REQUIRE_OK(ranks_model_open(model, &options));
    CHECK_EQ(gsync_bucket_count(model->reducer), TENSORS);
    CHECK_EQ(gsync_bucket_of(model->reducer, "p1"), 1);
    REQUIRE_OK(gsync_bucket_get(model->reducer, 1, &bucket));
    CHECK_EQ(bucket.bytes, 100 * sizeof(double));
    CHECK_EQ(bucket.gradient_count, 1);
    CHECK_EQ(bucket.dtype, GSYNC_FLOAT64);
    CHECK_STATUS(gsync_bucket_get(model->reducer, TENSORS, &bucket), GSYNC_ERR_ARGUMENT);
    CHECK(gsync_plan_digest(model->reducer) != 0);
}

static void GS_94_abort_ends_a_world_of_one_too(ranks_context *ctx) {
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, NULL));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    gsync_comm_abort(ctx->comm, "loss is NaN");
    CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_ABORTED);
    CHECK_CONTAINS(gsync_last_error(), "loss is NaN");
    CHECK_STATUS(gsync_barrier(ctx->comm), GSYNC_ERR_ABORTED);
}

/* There are no GPUs in this interface yet: the next number after the last transport is no transport. */
static void GS_94_a_transport_that_does_not_exist_is_refused(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.transport = (gsync_transport)(GSYNC_TRANSPORT_NCCL + 1);
    CHECK_STATUS(gsync_comm_create(&comm, &options), GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "transport");
    CHECK(comm == NULL);
    options.transport = GSYNC_TRANSPORT_SINGLE;
    CHECK_OK(gsync_comm_create(&comm, &options));
    CHECK_EQ(gsync_world_size(comm), ctx->world);
    gsync_comm_destroy(&comm);
}

/* Processes that nothing here can bring together must not train as so many worlds of one. */
static void GS_94_another_launchers_processes_are_not_taken_for_one(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    if (ctx->transport == RANKS_MPI) {
        SKIP("mpirun says how many processes there are");
    }
    REQUIRE(setenv("WORLD_SIZE", "2", 1) == 0);
    CHECK_STATUS(gsync_comm_create(&comm, NULL), GSYNC_ERR_UNSUPPORTED);
    CHECK_CONTAINS(gsync_last_error(), "WORLD_SIZE");
    REQUIRE(unsetenv("WORLD_SIZE") == 0);
    CHECK(comm == NULL);
}

/* Only a build with GRADSYNC_MPI=OFF can say so; the ctest cases.gs_94_build_without_mpi makes one. */
static void GS_94_asking_for_mpi_without_it_says_not_built(ranks_context *ctx) {
#if GS_HAVE_MPI
    (void)ctx;
    SKIP("this build has MPI");
#else
    gsync_comm *comm = NULL;
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    (void)ctx;
    options.transport = GSYNC_TRANSPORT_MPI;
    CHECK_STATUS(gsync_comm_create(&comm, &options), GSYNC_ERR_UNSUPPORTED);
    CHECK_CONTAINS(gsync_last_error(), "-DGRADSYNC_MPI=ON");
    REQUIRE(setenv("OMPI_COMM_WORLD_SIZE", "2", 1) == 0);
    CHECK_STATUS(gsync_comm_create(&comm, NULL), GSYNC_ERR_UNSUPPORTED);
    CHECK_CONTAINS(gsync_last_error(), "OMPI_COMM_WORLD_SIZE");
    /* A launcher that started one process is no obstacle. */
    REQUIRE(setenv("OMPI_COMM_WORLD_SIZE", "1", 1) == 0);
    CHECK_OK(gsync_comm_create(&comm, NULL));
    CHECK_EQ(gsync_world_size(comm), 1);
    gsync_comm_destroy(&comm);
    REQUIRE(unsetenv("OMPI_COMM_WORLD_SIZE") == 0);
#endif
}

#define GS_94_TEST(function) RANKS_TEST_WITH(function, .world_max = 1)
#define GS_94_WITHOUT_LAUNCHER(function) RANKS_TEST_WITH(function, .world_max = 1, .needs_no_comm = true)

RANKS_MAIN(
    GS_94_TEST(GS_94_the_communicator_is_a_world_of_one), GS_94_TEST(GS_94_collective_calls_leave_values_as_they_are),
    GS_94_TEST(GS_94_all_done_is_my_own_answer), GS_94_TEST(GS_94_a_world_of_one_splits_into_itself),
    GS_94_TEST(GS_94_a_step_returns_the_gradient_itself), GS_94_TEST(GS_94_a_weighted_mean_divides_by_the_own_weight),
    GS_94_TEST(GS_94_windows_are_added_up), GS_94_TEST(GS_94_joining_with_nothing_gives_zeros),
    RANKS_TEST_WITH(GS_94_the_trainers_mistakes_are_found_alone_too, .world_max = 1, .progress = LATE_WRITE_PROGRESS),
    GS_94_TEST(GS_94_unused_and_frozen_gradients_stay_untouched),
    GS_94_TEST(GS_94_gradients_live_in_the_library_and_move), GS_94_TEST(GS_94_the_plan_can_be_looked_at),
    GS_94_TEST(GS_94_abort_ends_a_world_of_one_too), GS_94_TEST(GS_94_a_transport_that_does_not_exist_is_refused),
    GS_94_WITHOUT_LAUNCHER(GS_94_another_launchers_processes_are_not_taken_for_one),
    GS_94_WITHOUT_LAUNCHER(GS_94_asking_for_mpi_without_it_says_not_built))
