/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=no (it counts what the host allocates)
   gsync-test: worlds=2 links=internal timeout=120
   gsync-test: wrap=malloc,calloc,realloc,aligned_alloc,posix_memalign,free */

/*
 * From the third step on, a step allocates nothing, whatever the order of the marks and the options. The first two may:
 * the order of buckets is agreed in between. Where ranks are threads, one count is for all of them.
 */

#include "alloc_fault.h"
#include "ranks.h"

enum { TENSORS = 60, STEPS_BEFORE = 2, STEPS = 10 };

static size_t count_of(size_t tensor) {
    return 1 + tensor * 37 % 500;
}

static ranks_model *open_model(ranks_context *ctx, gsync_comm *comm, const gsync_options *options, bool is_in_library) {
    size_t counts[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        counts[i] = count_of(i);
    }
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    for (size_t i = 0; i < TENSORS && is_in_library; i++) {
        model->tensors[i].grad = NULL;
    }
    CHECK_OK(ranks_model_register(model, comm, options));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    for (size_t i = 0; i < TENSORS && is_in_library; i++) {
        model->tensors[i].grad = gsync_reducer_grad(model->reducer, model->tensors[i].name);
    }
    return model;
}

static void micro_batch(ranks_model *model, gsync_phase phase, ranks_random *random) {
    size_t order[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        order[i] = i;
    }
    ranks_shuffle(random, order, TENSORS);
    CHECK_OK(gsync_begin(model->reducer, phase));
    CHECK_OK(gsync_set_weight(model->reducer, 2.5));
    /* The last of the order is never marked. */
    for (size_t i = 0; i + 1 < TENSORS; i++) {
        CHECK_OK(ranks_model_ready(model, order[i]));
    }
    CHECK_OK(gsync_finish(model->reducer, NULL));
}

/* As a trainer does whose gradients are somewhere else in every step. */
static void rebind_all(ranks_model *model) {
    void *grads[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        grads[i] = model->tensors[i].grad;
    }
    CHECK_OK(gsync_reducer_rebind_list(model->reducer, grads, TENSORS));
    CHECK_OK(gsync_reducer_rebind(model->reducer, model->tensors[0].name, grads[0]));
}

/* Two micro-batches and one without data, in which a rank takes part all the same. */
static void step(ranks_model *model, ranks_random *random) {
    rebind_all(model);
    micro_batch(model, GSYNC_ACCUMULATE, random);
    micro_batch(model, GSYNC_SYNC, random);
    if (model->ctx->rank == 0) {
        CHECK_OK(gsync_finish_empty(model->reducer, NULL));
    } else {
        micro_batch(model, GSYNC_SYNC, random);
    }
}

static void check_model(ranks_model *model) {
    ranks_context *ctx = model->ctx;
    ranks_random random = ranks_random_from(ctx->seed, (uint64_t)ctx->rank);
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    for (int i = 0; i < STEPS_BEFORE; i++) {
        step(model, &random);
    }
    REQUIRE(ranks_meet(ctx));
    if (ctx->rank == 0 || ctx->transport == RANKS_MPI) {
        alloc_fault_fail_nth(0);
    }
    REQUIRE(ranks_meet(ctx));
    for (int i = 0; i < STEPS; i++) {
        step(model, &random);
    }
    REQUIRE(ranks_meet(ctx));
    CHECK_EQ(alloc_fault_count(), 0);
    REQUIRE(ranks_meet(ctx));
}

static void check_options(ranks_context *ctx, const gsync_options *options) {
    for (int is_in_library = 0; is_in_library < 2; is_in_library++) {
        ranks_model *model = open_model(ctx, ctx->comm, options, is_in_library);
        check_model(model);
        gsync_reducer_destroy(&model->reducer);
    }
}

static gsync_options small_buckets(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 8192;
    options.op = GSYNC_WEIGHTED_MEAN;
    return options;
}

static void a_plain_step(ranks_context *ctx) {
    const gsync_options options = small_buckets();
    check_options(ctx, &options);
}

static void a_step_in_registered_order(ranks_context *ctx) {
    gsync_options options = small_buckets();
    options.order = GSYNC_ORDER_REGISTERED;
    options.strategy = GSYNC_STRATEGY_FIXED;
    check_options(ctx, &options);
}

static void a_step_that_adds_up_micro_batches(ranks_context *ctx) {
    gsync_options options = small_buckets();
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    check_options(ctx, &options);
    options.weighting = GSYNC_WEIGHT_OF_MEANS;
    check_options(ctx, &options);
}

static void a_step_that_finds_unused_gradients(ranks_context *ctx) {
    gsync_options options = small_buckets();
    options.finds_unused = 1;
    check_options(ctx, &options);
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    check_options(ctx, &options);
}

static void a_step_that_checks_writes(ranks_context *ctx) {
    gsync_options options = small_buckets();
    options.checks_writes = 1;
    check_options(ctx, &options);
    options.finds_unused = 1;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    check_options(ctx, &options);
}

static void a_step_moved_by_the_caller(ranks_context *ctx) {
    const gsync_options options = small_buckets();
    check_options(ctx, &options);
}

static void a_step_between_hosts(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    const gsync_options options = small_buckets();
    gsync_comm_options comm_options = ctx->comm_options;
    comm_options.ranks_per_host = 1;
    REQUIRE_OK(gsync_comm_create(&comm, &comm_options));
    ranks_model *model = open_model(ctx, comm, &options, false);
    check_model(model);
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
}

RANKS_MAIN(RANKS_TEST(a_plain_step), RANKS_TEST(a_step_in_registered_order),
           RANKS_TEST(a_step_that_adds_up_micro_batches), RANKS_TEST(a_step_that_finds_unused_gradients),
           RANKS_TEST(a_step_that_checks_writes),
           RANKS_TEST_WITH(a_step_moved_by_the_caller, .progress = GSYNC_PROGRESS_CALLER),
           RANKS_TEST_WITH(a_step_between_hosts, .needs_mpi = true))
