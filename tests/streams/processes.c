/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* Steps of processes that mpirun has started, each with a simulated GPU: results are the host's, bit by bit; and who
 * waits in vain says for whom. */

#include "device_trainer.h"

enum { STEPS = 4, TIMEOUT_MS = 1000 };

static void train(trainer *t, ending how) {
    cudaEvent_t consumed;
    OK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming));
    for (int step = 0; step < STEPS; step++) {
        report_failure(t, "begin", gsync_begin(t->device, GSYNC_SYNC));
        report_failure(t, "the twin's begin", gsync_begin(t->host, GSYNC_SYNC));
        trainer_backward(t, false, consumed);
        (void)trainer_finish(t, how, NULL);
        (void)trainer_compare(t);
    }
    OK(cudaEventDestroy(consumed));
}

static void run(gsync_comm *comm, const gsync_options *options, gsync_dtype dtype, ending how) {
    trainer t;
    const model m = {.count = 5, .columns = {40, 700, 25, 130, 64}, .dtype = dtype, .seed = 31};
    if (trainer_open(&t, &m, comm, options, 2)) {
        train(&t, how);
    }
    trainer_close(&t);
}

/* ---- a rank that stops ---- */

static void check_words(gsync_status status, const char *const words[2]) {
    const bool is_right =
        (status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_PEER_LOST || status == GSYNC_ERR_ABORTED) &&
        strstr(gsync_last_error(), words[0]) != NULL && strstr(gsync_last_error(), words[1]) != NULL;
    if (!is_right) {
        fprintf(stderr, "%s: %s\n", gsync_status_name(status), gsync_last_error());
    }
    CHECK(is_right);
}

/* The last rank marks the first bucket only. */
static void stop_among_buckets(trainer *t, gsync_comm *world, const char *const words[2]) {
    CHECK(gsync_begin(t->device, GSYNC_SYNC) == GSYNC_OK);
    for (int g = t->model->count; g-- > (t->rank == t->ranks - 1 ? 2 : 0);) {
        backward_one(t, g, t->compute[0], false);
        CHECK(gsync_ready_on(t->device, t->on_device[g], t->compute[0]) == GSYNC_OK);
    }
    if (t->rank != t->ranks - 1) {
        check_words(gsync_finish(t->device, NULL), words);
    }
    CHECK(gsync_barrier(world) == GSYNC_OK); /* it has a deadline of its own */
}

static void run_into_deadline(gsync_comm *world, const gsync_options *options, uint32_t ranks_per_host,
                              const char *const words[2]) {
    trainer t;
    gsync_comm *comm = NULL;
    const model m = {.count = 5, .columns = {40, 700, 25, 130, 64}, .dtype = GSYNC_FLOAT32, .seed = 32};
    gsync_comm_options impatient = GSYNC_COMM_OPTIONS_INIT;
    impatient.timeout_ms = TIMEOUT_MS;
    impatient.ranks_per_host = ranks_per_host;
    CHECK(gsync_comm_create(&comm, &impatient) == GSYNC_OK);
    if (trainer_open(&t, &m, comm, options, 1)) {
        stop_among_buckets(&t, world, words);
    }
    trainer_close(&t);
    gsync_comm_destroy(&comm);
}

static void miss_a_rank(gsync_comm *world, const gsync_options *options) {
    char late[64];
    char unheard[64];
    const int last = gsync_world_size(world) - 1;
    snprintf(late, sizeof late, "rank %d has launched 1 of 3 buckets", last);
    snprintf(unheard, sizeof unheard, "%d is, is not known here", last);
    gsync_options alone = *options;
    alone.order = GSYNC_ORDER_REGISTERED; /* the ranks would wait for rank 0's order, and could name who is late */
    run_into_deadline(world, options, 0, (const char *const[2]){late, "bucket 1 with gradient 'gradient 1'"});
    if (last == 1) {
        run_into_deadline(world, &alone, 1, (const char *const[2]){"rank 0 has launched all buckets", unheard});
    }
}

int main(void) {
    gsync_comm *comm = NULL;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_deterministic = 1;
    options.bucket_bytes_max = 1000;
    options.bucket_bytes_first_max = 1000;
    if (gsync_comm_create(&comm, NULL) != GSYNC_OK) {
        fprintf(stderr, "%s\n", gsync_last_error());
        return 1;
    }
    OK(cudaSetDevice(gsync_rank(comm) % 8));
    run(comm, &options, GSYNC_FLOAT32, WAITS_ON_HOST);
    run(comm, &options, GSYNC_FLOAT16, WAITS_ON_STREAM);
    print_reports();
    CHECK(simcuda_reports(NULL, 0) == 0);
    if (gsync_world_size(comm) > 1) {
        miss_a_rank(comm, &options);
    }
    gsync_comm_destroy(&comm);
    return atomic_load(&rank_failures) == 0 ? 0 : 1;
}
