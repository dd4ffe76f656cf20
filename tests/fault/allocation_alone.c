/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: transports=single links=internal
   gsync-test: wrap=malloc,calloc,realloc,aligned_alloc,posix_memalign,free */

/* Every allocation of a rank that is alone is once made to fail: the call says so, leaks nothing, and can be repeated.
 */

#include "alloc_fault.h"
#include "ranks.h"

#include <stdio.h>

enum { WORLD = 3, TENSORS = 40, COUNT = 100, TRIES_MAX = 10000 };

/* Makes the nth allocation of a call fail. Returns false once the call makes fewer, and then has succeeded. */
static bool try_nth(size_t nth, gsync_status (*call)(void *argument), void *argument) {
    const long before = alloc_fault_live();
    alloc_fault_fail_nth(nth);
    const gsync_status status = call(argument);
    const bool has_failed = alloc_fault_count() >= nth;
    alloc_fault_fail_nth(0);
    CHECK_STATUS(status, has_failed ? GSYNC_ERR_MEMORY : GSYNC_OK);
    if (has_failed) {
        CHECK_CONTAINS(gsync_last_error(), "out of memory");
        CHECK_EQ(alloc_fault_live(), before);
    }
    return has_failed;
}

static size_t try_every(gsync_status (*call)(void *argument), void *argument) {
    size_t nth = 1;
    while (nth < TRIES_MAX && try_nth(nth, call, argument)) {
        nth++;
    }
    return nth - 1;
}

static gsync_status make_threads(void *argument) {
    return gsync_comm_threads(argument, WORLD, NULL);
}

static void communicators_for_threads(ranks_context *ctx) {
    (void)ctx;
    const long before = alloc_fault_live();
    gsync_comm *comms[WORLD] = {NULL};
    CHECK(try_every(make_threads, comms) > WORLD);
    for (int i = 0; i < WORLD; i++) {
        gsync_comm_destroy(&comms[i]);
    }
    CHECK_EQ(alloc_fault_live(), before);
}

static gsync_status make_single(void *argument) {
    return gsync_comm_create(argument, NULL);
}

static void a_communicator_of_one(ranks_context *ctx) {
    (void)ctx;
    const long before = alloc_fault_live();
    gsync_comm *comm = NULL;
    CHECK(try_every(make_single, &comm) > 1);
    gsync_comm_destroy(&comm);
    CHECK_EQ(alloc_fault_live(), before);
}

static gsync_status split(void *argument) {
    gsync_comm **comms = argument;
    return gsync_comm_split(comms[0], 0, 0, &comms[1]);
}

static void a_split(ranks_context *ctx) {
    const long before = alloc_fault_live();
    gsync_comm *comms[2] = {ctx->comm, NULL};
    CHECK(try_every(split, comms) > 1);
    gsync_comm_destroy(&comms[1]);
    CHECK_EQ(alloc_fault_live(), before);
}

static gsync_status make_scaler(void *argument) {
    return gsync_scaler_create(argument, NULL);
}

/* The reducer that uses it may be the last to let it go. */
static void a_loss_scaler(ranks_context *ctx) {
    const long before = alloc_fault_live();
    gsync_scaler *scaler = NULL;
    gsync_reducer *reducer = NULL;
    CHECK(try_every(make_scaler, &scaler) > 0);
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    REQUIRE_OK(gsync_reducer_set_scaler(reducer, scaler));
    REQUIRE_OK(gsync_reducer_set_scaler(reducer, scaler));
    gsync_scaler_destroy(&scaler);
    CHECK(alloc_fault_live() > before);
    gsync_reducer_destroy(&reducer);
    CHECK_EQ(alloc_fault_live(), before);
}

typedef struct reducer_call {
    ranks_context *ctx;
    const gsync_options *options;
    gsync_reducer *reducer;
    float *grads; /* NULL: the library's memory */
    int tensor;
} reducer_call;

static gsync_status create(void *argument) {
    reducer_call *call = argument;
    return gsync_reducer_create(&call->reducer, call->ctx->comm, call->options);
}

static gsync_status add(void *argument) {
    reducer_call *call = argument;
    char name[16];
    snprintf(name, sizeof name, "p%d", call->tensor);
    float *grad = call->grads != NULL ? call->grads + (size_t)call->tensor * COUNT : NULL;
    return gsync_reducer_add(call->reducer, name, grad, COUNT, GSYNC_FLOAT32);
}

static gsync_status commit(void *argument) {
    reducer_call *call = argument;
    return gsync_reducer_commit(call->reducer);
}

/* Adds and commits keep some of what they allocated for the next try, so only the end is a place to count blocks. */
static void try_every_growing(gsync_status (*call)(void *argument), void *argument) {
    gsync_status status = GSYNC_ERR_MEMORY;
    for (size_t nth = 1; nth < TRIES_MAX && status != GSYNC_OK; nth++) {
        alloc_fault_fail_nth(nth);
        status = call(argument);
        const bool has_failed = alloc_fault_count() >= nth;
        alloc_fault_fail_nth(0);
        REQUIRE_STATUS(status, has_failed ? GSYNC_ERR_MEMORY : GSYNC_OK);
    }
}

static void check_step(const reducer_call *call) {
    for (int i = 0; i < TENSORS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        float *grad = gsync_reducer_grad(call->reducer, name);
        REQUIRE(grad != NULL);
        for (int k = 0; k < COUNT; k++) {
            grad[k] = (float)(i + k);
        }
    }
    CHECK_OK(gsync_begin(call->reducer, GSYNC_SYNC));
    for (int i = 0; i < TENSORS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        CHECK_OK(gsync_ready(call->reducer, gsync_reducer_grad(call->reducer, name)));
    }
    CHECK_OK(gsync_finish(call->reducer, NULL));
    const float *last = gsync_reducer_grad(call->reducer, "p39");
    CHECK_REAL(last[COUNT - 1], 39 + COUNT - 1);
}

static void reduce_in_spite_of_failures(ranks_context *ctx, const gsync_options *options, float *grads) {
    const long before = alloc_fault_live();
    reducer_call call = {.ctx = ctx, .options = options, .grads = grads};
    REQUIRE(try_every(create, &call) > 0);
    for (; call.tensor < TENSORS; call.tensor++) {
        try_every_growing(add, &call);
    }
    try_every_growing(commit, &call);
    check_step(&call);
    gsync_reducer_destroy(&call.reducer);
    CHECK_EQ(alloc_fault_live(), before);
}

static void a_reducer(ranks_context *ctx) {
    reduce_in_spite_of_failures(ctx, NULL, ranks_memory(ctx, TENSORS * COUNT * sizeof(float)));
}

static void a_reducer_of_gradients_in_the_library(ranks_context *ctx) {
    reduce_in_spite_of_failures(ctx, NULL, NULL);
}

static void a_reducer_that_adds_up_micro_batches(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.accumulation = GSYNC_CLIENT_OVERWRITES;
    reduce_in_spite_of_failures(ctx, &options, ranks_memory(ctx, TENSORS * COUNT * sizeof(float)));
    reduce_in_spite_of_failures(ctx, &options, NULL);
}

static void a_reducer_that_checks_everything(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.finds_unused = 1;
    options.checks_writes = 1;
    options.bucket_bytes_max = 1000;
    reduce_in_spite_of_failures(ctx, &options, NULL);
}

RANKS_MAIN(RANKS_TEST(communicators_for_threads), RANKS_TEST(a_communicator_of_one), RANKS_TEST(a_split),
           RANKS_TEST(a_loss_scaler), RANKS_TEST(a_reducer), RANKS_TEST(a_reducer_of_gradients_in_the_library),
           RANKS_TEST(a_reducer_that_adds_up_micro_batches), RANKS_TEST(a_reducer_that_checks_everything))
