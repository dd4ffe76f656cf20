/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=no (it damages the hash that a host makes)
   gsync-test: worlds=2,4 transports=threads,mpi links=internal wrap=gs_host_hash_tensor */
#include "device/device_host.h"
#include "ranks.h"

#include <stdatomic.h>

/* replica_check_interval. Results are the same on all ranks; here one rank's memory seems to have lost a bit. */

static _Thread_local const void *damaged; /* the address of this rank's gradient that is, or NULL */
static _Thread_local int hashes;

uint64_t __real_gs_host_hash_tensor(const gs_tensor *tensor);
uint64_t __wrap_gs_host_hash_tensor(const gs_tensor *tensor);

uint64_t __wrap_gs_host_hash_tensor(const gs_tensor *tensor) {
    hashes++;
    return __real_gs_host_hash_tensor(tensor) ^ (tensor->data == damaged ? 1u : 0u);
}

enum { TENSORS = 300 }; /* more than fit into one message */

static ranks_model *open_model(ranks_context *ctx, uint32_t interval) {
    size_t counts[TENSORS];
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.replica_check_interval = interval;
    for (size_t i = 0; i < TENSORS; i++) {
        counts[i] = 1 + i % 7;
    }
    damaged = NULL;
    ranks_model *model = ranks_model_new(ctx, counts, TENSORS, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_open(model, &options));
    return model;
}

static void every_third_step_is_checked(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, 3);
    for (uint64_t step = 1; step <= 7; step++) {
        hashes = 0;
        ranks_model_fill(model, RANKS_INTEGERS, step);
        CHECK_OK(ranks_model_step(model, NULL, NULL));
        CHECK_MODEL_MEAN(model, RANKS_INTEGERS, step);
        CHECK_EQ(hashes, step % 3 == 0 ? TENSORS : 0);
    }
}

static void names_the_first_gradient_and_rank_that_differ(ranks_context *ctx) {
    ranks_model *model = open_model(ctx, 2);
    damaged = ctx->rank == 1 ? model->tensors[270].grad : NULL;
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_STATUS(ranks_model_step(model, NULL, NULL), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "'p270' of rank 1");
    CHECK_EQ(gsync_is_synced(model->reducer), 0);
    damaged = NULL; /* the reducer goes on */
    ranks_model_fill(model, RANKS_INTEGERS, 3);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_OK(ranks_model_step(model, NULL, NULL));
}

RANKS_MAIN(RANKS_TEST(every_third_step_is_checked), RANKS_TEST(names_the_first_gradient_and_rank_that_differ))
