/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=threads,mpi timeout=120 */

/*
 * However often the ranks reduce, what they have of memory, threads, descriptors and mappings stays as it was after
 * the first few times.
 *
 * CI repeats this for a few seconds. For a million small reductions and ten thousand of 25 MiB:
 *
 *     GRADSYNC_TEST_SOAK=1 build/test/tests/programs/soak.many_reductions --ranks 2
 *     GRADSYNC_TEST_SOAK=1 scripts/mpirun.sh mpirun -n 2 build/test/tests/programs/soak.many_reductions
 *
 * Between hosts, which are emulated here, it is a hundred thousand and five hundred.
 */

#include "process_usage.h"

#include <unistd.h>

enum {
    SMALL = 16,
    LARGE = 25 * 1024 * 1024 / (int)sizeof(float),
    WARM_UP = 200,
    WARM_UP_LARGE = 4,
    WARM_UP_HOSTS = 150
};

typedef struct repeats {
    long small_in_ci;
    long small;
    long large_in_ci;
    long large;
} repeats;

static const repeats on_one_host = {40000, 1000000, 50, 10000};
static const repeats between_hosts = {2000, 100000, 10, 500};

/* Does the same again and again. */
typedef struct worker {
    ranks_context *ctx;
    gsync_comm *comm;
    ranks_model *model;
    const char *what;
    bool has_hosts;
    bool (*work)(struct worker *self, long i);
} worker;

/* Now and then the whole of a minute, however long the soak. */
static void wake_watchdog(long i) {
    if (i % 100 == 0) {
        alarm(RANKS_WATCHDOG_S);
    }
}

/* While nothing moves. Ranks that are threads share what is counted, and so would count each other's counting. */
static process_usage count_usage(const worker *self) {
    process_usage usage = {0};
    ranks_meet(self->ctx);
    if (self->ctx->rank == 0 || self->ctx->transport == RANKS_MPI) {
        usage = usage_now();
    }
    ranks_meet(self->ctx);
    return usage;
}

static void repeat(worker *self, long warm_up, long times) {
    bool is_good = true;
    for (long i = 0; i < warm_up && is_good; i++) {
        is_good = self->work(self, i);
    }
    const process_usage before = count_usage(self);
    for (long i = 0; i < times && is_good; i++) {
        wake_watchdog(i);
        is_good = self->work(self, i);
    }
    const process_usage after = count_usage(self);
    CHECK(is_good);
    usage_check(&before, &after, self->has_hosts);
    usage_print(self->ctx, self->what, times, &before, &after);
}

static bool reduce_values(worker *self, long i) {
    const ranks_context *ctx = self->ctx;
    float values[SMALL];
    for (int k = 0; k < SMALL; k++) {
        values[k] = (float)(ctx->rank + k + (int)(i % 1000));
    }
    if (!CHECK_OK(gsync_allreduce(self->comm, values, SMALL, GSYNC_FLOAT32, GSYNC_SUM))) {
        return false;
    }
    const int last = SMALL - 1;
    const int ranks = ctx->world * (ctx->world - 1) / 2;
    return CHECK(values[0] == (float)(ctx->world * (int)(i % 1000) + ranks)) &&
           CHECK(values[last] == (float)(ctx->world * (last + (int)(i % 1000)) + ranks));
}

/* Means of means stay as they are, so the gradients need not be filled again. */
static bool take_step(worker *self, long i) {
    (void)i;
    const ranks_tensor *tensor = &self->model->tensors[0];
    const float *grad = tensor->grad;
    const float mean = (float)(self->ctx->world - 1) / 2.0f;
    return CHECK_OK(ranks_model_step(self->model, NULL, NULL)) && CHECK(grad[0] == mean) &&
           CHECK(grad[tensor->count / 2] == mean) && CHECK(grad[tensor->count - 1] == mean);
}

static void open_model(worker *self, size_t count) {
    self->model = ranks_model_new(self->ctx, &count, 1, GSYNC_FLOAT32);
    float *grad = self->model->tensors[0].grad;
    for (size_t i = 0; i < count; i++) {
        grad[i] = (float)self->ctx->rank;
    }
    CHECK_OK(ranks_model_register(self->model, self->comm, NULL));
    CHECK_OK(gsync_reducer_commit(self->model->reducer));
}

static long times_of(long in_ci, long in_soak) {
    return soak_is_long() ? in_soak : in_ci;
}

/* Half of the small ones as calls, half as steps. */
static void repeat_all(ranks_context *ctx, gsync_comm *comm, const repeats *often) {
    worker self = {.ctx = ctx,
                   .comm = comm,
                   .has_hosts = often == &between_hosts,
                   .what = "gsync_allreduce of 64 bytes",
                   .work = reduce_values};
    const long small = times_of(often->small_in_ci, often->small) / 2;
    repeat(&self, WARM_UP, small);
    self.what = "step of 64 bytes";
    self.work = take_step;
    open_model(&self, SMALL);
    repeat(&self, WARM_UP, small);
    gsync_reducer_destroy(&self.model->reducer);
    self.what = "step of 25 MiB";
    open_model(&self, LARGE);
    repeat(&self, self.has_hosts && soak_is_long() ? WARM_UP_HOSTS : WARM_UP_LARGE,
           times_of(often->large_in_ci, often->large));
    gsync_reducer_destroy(&self.model->reducer);
}

static void reductions_on_one_host_leave_nothing_behind(ranks_context *ctx) {
    repeat_all(ctx, ctx->comm, &on_one_host);
}

static void reductions_between_hosts_leave_nothing_behind(ranks_context *ctx) {
    gsync_comm_options options = ctx->comm_options;
    gsync_comm *comm = NULL;
    options.ranks_per_host = 1;
    REQUIRE_OK(gsync_comm_create(&comm, &options));
    repeat_all(ctx, comm, &between_hosts);
    gsync_comm_destroy(&comm);
}

RANKS_MAIN(RANKS_TEST(reductions_on_one_host_leave_nothing_behind),
           RANKS_TEST_WITH(reductions_between_hosts_leave_nothing_behind, .needs_mpi = true))
