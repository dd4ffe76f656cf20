/* SPDX-License-Identifier: Apache-2.0 */
/* Fits y = 3 a - 2 b + 0.5, alone or under mpirun: the ranks share the samples and end up with the same weights. */
#include <gradsync/gradsync.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 240, STEPS = 60, WEIGHTS = 3 };

static void check(gsync_status status) {
    if (status != GSYNC_OK) {
        fprintf(stderr, "%s: %s\n", gsync_status_name(status), gsync_last_error());
        exit(1);
    }
}

/* Adds one sample's gradient to grad and returns its loss, the squared error. */
static double learn_from(int sample, const float *weights, float *grad) {
    const float x[WEIGHTS] = {(float)(sample % 16) / 8 - 1, (float)(sample / 16) / 8 - 1, 1};
    const float wanted = 3 * x[0] - 2 * x[1] + 0.5f;
    const float error = weights[0] * x[0] + weights[1] * x[1] + weights[2] * x[2] - wanted;
    for (int i = 0; i < WEIGHTS; i++) {
        grad[i] += 2 * error * x[i];
    }
    return error * error;
}

int main(void) {
    float weights[WEIGHTS] = {0}, grad[WEIGHTS];
    gsync_comm *comm = NULL;
    gsync_reducer *reducer = NULL;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN; /* the sum of all gradients over the number of all samples */
    check(gsync_comm_create(&comm, NULL));
    check(gsync_reducer_create(&reducer, comm, &options));
    check(gsync_reducer_add(reducer, "weights", grad, WEIGHTS, GSYNC_FLOAT32));
    check(gsync_reducer_commit(reducer));
    check(gsync_broadcast(comm, weights, WEIGHTS, GSYNC_FLOAT32, 0)); /* all ranks start alike */
    for (int step = 1; step <= STEPS; step++) {
        double sums[2] = {0, 0}; /* loss, samples */
        grad[0] = grad[1] = grad[2] = 0;
        check(gsync_begin(reducer, GSYNC_SYNC));
        for (int i = gsync_rank(comm); i < SAMPLES; i += gsync_world_size(comm), sums[1]++) {
            sums[0] += learn_from(i, weights, grad);
        }
        check(gsync_set_weight(reducer, sums[1]));
        check(gsync_ready(reducer, grad)); /* with many gradients: each as soon as it is final */
        check(gsync_finish(reducer, NULL));
        for (int i = 0; i < WEIGHTS; i++) {
            weights[i] -= 0.3f * grad[i];
        }
        check(gsync_allreduce(comm, sums, 2, GSYNC_FLOAT64, GSYNC_SUM));
        if (gsync_rank(comm) == 0 && step % 10 == 0) {
            printf("step %2d  loss %.6f  weights %.4f %.4f %.4f\n", step, sums[0] / sums[1], weights[0], weights[1],
                   weights[2]);
        }
    }
    gsync_reducer_destroy(&reducer);
    gsync_comm_destroy(&comm);
}
