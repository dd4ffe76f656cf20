/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,4 */

/*
 * GS-33: training over several ranks equals training in one process with the joined batch. Linear regression, eight
 * samples, gradient descent. gs_33_cxx.cpp does the same from C++.
 */

#include "ranks.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 8, FEATURES = 3, STEPS = 100 };
#define RATE 0.2f

typedef struct network {
    float weights[FEATURES];
    float bias;
    float weights_grad[FEATURES];
    float bias_grad;
} network;

typedef struct data {
    float inputs[SAMPLES][FEATURES];
    float targets[SAMPLES];
} data;

/* Targets are linear in the inputs but for a little noise, so that the loss falls to nearly nothing. */
static void make_data(uint64_t seed, data *all) {
    ranks_random random = ranks_random_from(seed, 33);
    for (int i = 0; i < SAMPLES; i++) {
        float target = 0.5f;
        for (int j = 0; j < FEATURES; j++) {
            all->inputs[i][j] = (float)ranks_random_below(&random, 2001) / 1000.0f - 1.0f;
            target += all->inputs[i][j] * (float)(j + 1);
        }
        all->targets[i] = target + (float)ranks_random_below(&random, 101) / 10000.0f;
    }
}

/* The gradients of the mean squared error over samples [first, first + count); returns that error. */
static float backward(network *net, const data *all, int first, int count) {
    float loss = 0;
    memset(net->weights_grad, 0, sizeof(net->weights_grad));
    net->bias_grad = 0;
    for (int i = first; i < first + count; i++) {
        float error = net->bias - all->targets[i];
        for (int j = 0; j < FEATURES; j++) {
            error += net->weights[j] * all->inputs[i][j];
        }
        loss += error * error / (float)count;
        for (int j = 0; j < FEATURES; j++) {
            net->weights_grad[j] += 2 * error * all->inputs[i][j] / (float)count;
        }
        net->bias_grad += 2 * error / (float)count;
    }
    return loss;
}

static void descend(network *net) {
    for (int j = 0; j < FEATURES; j++) {
        net->weights[j] -= RATE * net->weights_grad[j];
    }
    net->bias -= RATE * net->bias_grad;
}

static gsync_status open_reducer(gsync_reducer **reducer, gsync_comm *comm, network *net) {
    gsync_status status = gsync_reducer_create(reducer, comm, NULL);
    if (status == GSYNC_OK) {
        status = gsync_reducer_add(*reducer, "weights", net->weights_grad, FEATURES, GSYNC_FLOAT32);
    }
    if (status == GSYNC_OK) {
        status = gsync_reducer_add(*reducer, "bias", &net->bias_grad, 1, GSYNC_FLOAT32);
    }
    return status == GSYNC_OK ? gsync_reducer_commit(*reducer) : status;
}

/* Trains on this rank's share of the samples. losses: the first step's and the last one's mean over the ranks. */
static void train(gsync_comm *comm, const data *all, network *net, float losses[2]) {
    const int share = SAMPLES / gsync_world_size(comm);
    gsync_reducer *reducer = NULL;
    bool is_good = CHECK_OK(open_reducer(&reducer, comm, net));
    is_good = is_good && CHECK_OK(gsync_broadcast(comm, net->weights, FEATURES, GSYNC_FLOAT32, 0));
    is_good = is_good && CHECK_OK(gsync_broadcast(comm, &net->bias, 1, GSYNC_FLOAT32, 0));
    for (int step = 0; is_good && step < STEPS; step++) {
        is_good = CHECK_OK(gsync_begin(reducer, GSYNC_SYNC));
        float loss = backward(net, all, share * gsync_rank(comm), share);
        is_good = is_good && CHECK_OK(gsync_ready(reducer, &net->bias_grad));
        is_good = is_good && CHECK_OK(gsync_ready(reducer, net->weights_grad));
        is_good = is_good && CHECK_OK(gsync_finish(reducer, NULL));
        is_good = is_good && CHECK_OK(gsync_allreduce(comm, &loss, 1, GSYNC_FLOAT32, GSYNC_MEAN));
        losses[step == 0 ? 0 : 1] = loss;
        descend(net);
    }
    gsync_reducer_destroy(&reducer);
}

/* What every rank starts from differs; the broadcast makes it rank 0's. */
static network start_of(int rank) {
    return (network){.weights = {0.25f + (float)rank, -0.5f, 0.125f * (float)rank}, .bias = -0.75f};
}

static void GS_33_training_over_ranks_equals_one_process_with_the_joined_batch(ranks_context *ctx) {
    if (SAMPLES % ctx->world != 0) {
        SKIP("the ranks do not divide eight samples");
    }
    data all;
    make_data(ctx->seed, &all);
    float losses[2] = {0, 0};
    network together = start_of(ctx->rank);
    train(ctx->comm, &all, &together, losses);

    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.transport = GSYNC_TRANSPORT_SINGLE;
    gsync_comm *alone = NULL;
    float losses_alone[2] = {0, 0};
    network joined = start_of(0);
    REQUIRE_OK(gsync_comm_create(&alone, &options));
    CHECK_EQ(gsync_world_size(alone), 1);
    train(alone, &all, &joined, losses_alone);
    gsync_comm_destroy(&alone);

    for (int j = 0; j < FEATURES; j++) {
        CHECK_NEAR(together.weights[j], joined.weights[j], 1e-6);
    }
    CHECK_NEAR(together.bias, joined.bias, 1e-6);
    CHECK(losses[0] > 1.0f);
    CHECK(losses[1] < 0.01f * losses[0]);
    CHECK_NEAR(losses[1], losses_alone[1], 1e-6);
}

/* The reducer has no part in this one: it catches a fault that both runs above would share. */
static void GS_33_one_rank_trains_like_a_program_without_the_library(ranks_context *ctx) {
    data all;
    make_data(ctx->seed, &all);
    network plain = start_of(0);
    for (int step = 0; step < STEPS; step++) {
        backward(&plain, &all, 0, SAMPLES);
        descend(&plain);
    }
    if (SAMPLES % ctx->world != 0) {
        SKIP("the ranks do not divide eight samples");
    }
    float losses[2] = {0, 0};
    network together = start_of(ctx->rank);
    train(ctx->comm, &all, &together, losses);
    for (int j = 0; j < FEATURES; j++) {
        CHECK_NEAR(together.weights[j], plain.weights[j], 1e-6);
    }
    CHECK_NEAR(together.bias, plain.bias, 1e-6);
    CHECK(ctx->world > 1 || memcmp(together.weights, plain.weights, sizeof(plain.weights)) == 0);
}

static void GS_33_every_replica_ends_with_the_same_bits(ranks_context *ctx) {
    if (SAMPLES % ctx->world != 0) {
        SKIP("the ranks do not divide eight samples");
    }
    data all;
    make_data(ctx->seed, &all);
    float losses[2] = {0, 0};
    network net = start_of(ctx->rank);
    train(ctx->comm, &all, &net, losses);
    for (int j = 0; j < FEATURES; j++) {
        uint32_t bits = 0;
        memcpy(&bits, &net.weights[j], sizeof(bits));
        CHECK_SAME_ON_ALL(ctx, bits);
    }
    const void *const buffers[] = {net.weights, &net.bias};
    const size_t bytes[] = {sizeof(net.weights), sizeof(net.bias)};
    CHECK_OK(gsync_check_replicas(ctx->comm, NULL, buffers, bytes, 2));
}

RANKS_MAIN(RANKS_TEST(GS_33_training_over_ranks_equals_one_process_with_the_joined_batch),
           RANKS_TEST(GS_33_one_rank_trains_like_a_program_without_the_library),
           RANKS_TEST(GS_33_every_replica_ends_with_the_same_bits))
