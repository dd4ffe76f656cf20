/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2,4 */

/*
 * GS-33 from C++: a trainer on two devices that does not learn. The public header and a C++11 program, with the
 * gradients in vectors and calls inside classes, against a plain loop over the joined batch.
 */

#include "ranks.h"

#include <cstdint>
#include <vector>

namespace {

const int samples = 8;
const int features = 3;
const int steps = 100;
const float rate = 0.2f;

struct Data {
    std::vector<std::vector<float>> inputs;
    std::vector<float> targets;

    explicit Data(std::uint64_t seed) : inputs(samples, std::vector<float>(features)), targets(samples) {
        ranks_random random = ranks_random_from(seed, 34);
        for (int i = 0; i < samples; i++) {
            targets[i] = 0.5f;
            for (int j = 0; j < features; j++) {
                inputs[i][j] = static_cast<float>(ranks_random_below(&random, 2001)) / 1000.0f - 1.0f;
                targets[i] += inputs[i][j] * static_cast<float>(j + 1);
            }
        }
    }
};

class Network {
  public:
    std::vector<float> weights;
    std::vector<float> bias;
    std::vector<float> weights_grad;
    std::vector<float> bias_grad;

    explicit Network(int rank)
        : weights(features, 0.25f * static_cast<float>(rank)), bias(1, -0.75f), weights_grad(features), bias_grad(1) {
    }

    /* The mean squared error over [first, first + count), and its gradients. */
    float backward(const Data &data, int first, int count) {
        float loss = 0;
        weights_grad.assign(features, 0.0f);
        bias_grad.assign(1, 0.0f);
        for (int i = first; i < first + count; i++) {
            float error = bias[0] - data.targets[i];
            for (int j = 0; j < features; j++) {
                error += weights[j] * data.inputs[i][j];
            }
            loss += error * error / static_cast<float>(count);
            for (int j = 0; j < features; j++) {
                weights_grad[j] += 2 * error * data.inputs[i][j] / static_cast<float>(count);
            }
            bias_grad[0] += 2 * error / static_cast<float>(count);
        }
        return loss;
    }

    void descend() {
        for (int j = 0; j < features; j++) {
            weights[j] -= rate * weights_grad[j];
        }
        bias[0] -= rate * bias_grad[0];
    }
};

/* Owns the handle, as a C++ trainer would. */
class Reducer {
  public:
    explicit Reducer(gsync_comm *comm) : handle(nullptr) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        options.is_strict = 1;
        CHECK_OK(gsync_reducer_create(&handle, comm, &options));
    }
    ~Reducer() {
        gsync_reducer_destroy(&handle);
    }
    Reducer(const Reducer &) = delete;
    Reducer &operator=(const Reducer &) = delete;

    void add(const char *name, std::vector<float> &grad) {
        CHECK_OK(gsync_reducer_add(handle, name, grad.data(), grad.size(), GSYNC_FLOAT32));
    }

    gsync_reducer *handle;
};

void train(ranks_context *ctx, const Data &data, Network &net, float &first_loss, float &last_loss) {
    const int share = samples / ctx->world;
    Reducer reducer(ctx->comm);
    reducer.add("weights", net.weights_grad);
    reducer.add("bias", net.bias_grad);
    REQUIRE_OK(gsync_reducer_commit(reducer.handle));
    REQUIRE_OK(gsync_broadcast(ctx->comm, net.weights.data(), net.weights.size(), GSYNC_FLOAT32, 0));
    for (int step = 0; step < steps; step++) {
        REQUIRE_OK(gsync_begin(reducer.handle, GSYNC_SYNC));
        float loss = net.backward(data, share * ctx->rank, share);
        REQUIRE_OK(gsync_ready(reducer.handle, net.bias_grad.data()));
        REQUIRE_OK(gsync_ready(reducer.handle, net.weights_grad.data()));
        REQUIRE_OK(gsync_finish(reducer.handle, nullptr));
        REQUIRE_OK(gsync_allreduce(ctx->comm, &loss, 1, GSYNC_FLOAT32, GSYNC_MEAN));
        first_loss = step == 0 ? loss : first_loss;
        last_loss = loss;
        net.descend();
    }
}

void GS_33_a_cxx_trainer_over_ranks_equals_a_loop_over_the_joined_batch(ranks_context *ctx) {
    if (samples % ctx->world != 0) {
        SKIP("the ranks do not divide eight samples");
    }
    const Data data(ctx->seed);
    Network plain(0);
    for (int step = 0; step < steps; step++) {
        plain.backward(data, 0, samples);
        plain.descend();
    }
    float first_loss = 0;
    float last_loss = 0;
    Network together(ctx->rank);
    train(ctx, data, together, first_loss, last_loss);
    for (int j = 0; j < features; j++) {
        CHECK_NEAR(together.weights[j], plain.weights[j], 1e-6);
    }
    CHECK_NEAR(together.bias[0], plain.bias[0], 1e-6);
    CHECK(last_loss < 0.01f * first_loss);
}

} // namespace

int main(int argc, char **argv) {
    ranks_test test = ranks_test();
    test.name = "GS_33_a_cxx_trainer_over_ranks_equals_a_loop_over_the_joined_batch";
    test.body = GS_33_a_cxx_trainer_over_ranks_equals_a_loop_over_the_joined_batch;
    return ranks_main(argc, argv, "gs_33_cxx.cpp", &test, 1);
}
