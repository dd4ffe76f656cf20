/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */
#include "nccl_ranks.h"

#include <stdbool.h>

/*
 * Going on without a rank that is lost. The communicator that a trainer lends is only split, never used, aborted or
 * shared, so when ours have failed the trainer can still shrink its own (ncclCommShrink, NCCL 2.27), and lend the rest.
 */

enum { RANKS = 4, LOST = 2, COUNT = 1000, TIMEOUT_MS = 1500 };

static const gsync_comm_options impatient = {.struct_size = sizeof impatient, .timeout_ms = TIMEOUT_MS};

static float value_of(int rank, int step, int element) {
    return (float)((rank + 1) * 1000 + step * 100 + element % 37);
}

typedef struct training {
    nccl_rank *self;
    gsync_reducer *reducer;
    float *grad; /* on the device */
    float host[COUNT];
} training;

static void open_training(training *t) {
    CHECK_STATUS(gsync_reducer_create(&t->reducer, t->self->comm, NULL), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_add(t->reducer, "weights", t->grad, COUNT, GSYNC_FLOAT32), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(t->reducer), GSYNC_OK);
}

static gsync_status take_step(training *t, int step) {
    for (int i = 0; i < COUNT; i++) {
        t->host[i] = value_of(t->self->rank, step, i);
    }
    OK(cudaMemcpy(t->grad, t->host, sizeof t->host, cudaMemcpyHostToDevice));
    const gsync_status status = gsync_begin(t->reducer, GSYNC_SYNC);
    return status == GSYNC_OK ? gsync_finish(t->reducer, NULL) : status;
}

/* Of the ranks that are in the sum. */
static void check_mean(training *t, int step, bool is_complete) {
    OK(cudaMemcpy(t->host, t->grad, sizeof t->host, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int rank = 0; rank < RANKS; rank++) {
            sum += rank != LOST || is_complete ? value_of(rank, step, i) : 0;
        }
        wrong += t->host[i] != sum / (float)(is_complete ? RANKS : RANKS - 1);
    }
    CHECK(wrong == 0);
}

static void close_training(training *t) {
    gsync_reducer_destroy(&t->reducer);
    gsync_comm_destroy(&t->self->comm);
}

/* What all survivors do: they know from the errors, or from each other, who is lost. */
static void shrink(nccl_rank *self) {
    int lost[] = {LOST};
    ncclComm_t smaller = NULL;
    OK(ncclCommShrink(self->trainers, lost, 1, &smaller, NULL, NCCL_SHRINK_ABORT));
    OK(ncclCommAbort(self->trainers));
    self->trainers = smaller;
    CHECK_STATUS(gsync_comm_from_nccl(&self->comm, smaller, &impatient), GSYNC_OK);
}

static void survive(nccl_rank *self) {
    training t = {.self = self};
    OK(cudaMalloc((void **)&t.grad, sizeof t.host));
    open_training(&t);
    CHECK_STATUS(take_step(&t, 1), GSYNC_OK);
    check_mean(&t, 1, true);
    if (self->rank == LOST) {
        close_training(&t); /* as a process that dies: nobody is told why */
    } else {
        CHECK_EITHER(take_step(&t, 2), GSYNC_ERR_TIMEOUT, GSYNC_ERR_PEER_LOST);
        close_training(&t);
        shrink(self);
        open_training(&t);
        CHECK(gsync_world_size(self->comm) == RANKS - 1);
        CHECK(gsync_rank(self->comm) == self->rank - (self->rank > LOST));
        for (int step = 2; step < 5; step++) {
            CHECK_STATUS(take_step(&t, step), GSYNC_OK);
            check_mean(&t, step, false);
        }
        close_training(&t);
    }
    OK(cudaFree(t.grad));
}

static void ranks_go_on_without_one_that_is_lost(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_peers_notice(1);
    run_nccl_ranks(RANKS, &impatient, survive);
    expect_nothing_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_go_on_without_one_that_is_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
