/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* Steps of processes that mpirun has started, each with a simulated GPU: results are the host's, bit by bit. */

#include "device_trainer.h"

enum { STEPS = 4 };

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
    gsync_comm_destroy(&comm);
    return atomic_load(&rank_failures) == 0 ? 0 : 1;
}
