/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=mpi links=internal
   gsync-test: wrap=posix_fallocate,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */

/* The host has no shared memory left when a rank asks for it. */

#include "ranks.h"

#include <errno.h>
#include <sys/types.h>

int __real_posix_fallocate(int file, off_t offset, off_t length);
int __wrap_posix_fallocate(int file, off_t offset, off_t length);

static int refusals; /* so many calls fail */

int __wrap_posix_fallocate(int file, off_t offset, off_t length) {
    if (refusals > 0) {
        refusals--;
        return ENOSPC;
    }
    return __real_posix_fallocate(file, offset, length);
}

static void a_commit_can_be_repeated_when_there_is_more(ranks_context *ctx) {
    const size_t counts[] = {100, 7, 2000};
    ranks_model *model = ranks_model_new(ctx, counts, 3, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    refusals = 1; /* only the first rank of the host asks */
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MEMORY);
    CHECK_CONTAINS(gsync_last_error(), "rank 0");
    refusals = 0;
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

static void a_communicator_turns_to_the_other_kind(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    refusals = 1;
    REQUIRE_OK(gsync_comm_create(&comm, &ctx->comm_options));
    refusals = 0;
    CHECK_OK(gsync_barrier(comm));
    ranks_model *model = ranks_model_new(ctx, (const size_t[]){50}, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, comm, NULL));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    gsync_comm_destroy(&comm);
}

static void a_communicator_without_memory_is_refused_on_all_ranks(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    refusals = 2;
    CHECK_STATUS(gsync_comm_create(&comm, &ctx->comm_options), GSYNC_ERR_MEMORY);
    CHECK(comm == NULL);
    refusals = 0;
    REQUIRE_OK(gsync_comm_create(&comm, &ctx->comm_options));
    CHECK_OK(gsync_barrier(comm));
    gsync_comm_destroy(&comm);
}

RANKS_MAIN(RANKS_TEST(a_commit_can_be_repeated_when_there_is_more), RANKS_TEST(a_communicator_turns_to_the_other_kind),
           RANKS_TEST(a_communicator_without_memory_is_refused_on_all_ranks))
