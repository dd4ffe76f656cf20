/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* What gsync_ready_on, gsync_finish_on and commit refuse and agree on, and who learns of it. */

#include "device_trainer.h"

#include <math.h>
#include <sched.h>

enum { COUNT = 64 };

typedef struct crew crew;
typedef void rank_story(crew *c, int rank, gsync_comm *comm);
struct crew {
    rank_story *story;
    gsync_comm *comms[RANKS_MAX];
    uint32_t timeout_ms;
    atomic_int arrived;
};

static void run_story(int rank, int ranks, void *context) {
    crew *c = context;
    (void)ranks;
    c->story(c, rank, c->comms[rank]);
    gsync_comm_destroy(&c->comms[rank]);
}

static void tell(int ranks, rank_story *story) {
    crew c = {.story = story, .timeout_ms = 1500};
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = c.timeout_ms;
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(c.comms, ranks, &options), GSYNC_OK);
    run_rank_threads(ranks, run_story, &c);
    print_reports();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

#define CHECK_STATUS(call, wanted, words)                                                                              \
    do {                                                                                                               \
        const gsync_status check_got = (call);                                                                         \
        CHECK(check_got == (wanted));                                                                                  \
        CHECK(check_got == GSYNC_OK || strstr(gsync_last_error(), (words)) != NULL);                                   \
        if (check_got != (wanted) || (check_got != GSYNC_OK && strstr(gsync_last_error(), (words)) == NULL)) {         \
            fprintf(stderr, "%s: %s: %s\n", #call, gsync_status_name(check_got), gsync_last_error());                  \
        }                                                                                                              \
    } while (0)

/* ---- a reducer with two gradients on the device ---- */

typedef struct pair {
    gsync_reducer *reducer;
    float *memory;
    float *grads[2];
    cudaStream_t compute;
} pair;

static void pair_make(pair *p, gsync_comm *comm, const gsync_options *options) {
    OK(cudaMalloc((void **)&p->memory, 3 * COUNT * sizeof(float)));
    OK(cudaStreamCreateWithFlags(&p->compute, cudaStreamNonBlocking));
    p->grads[0] = p->memory;
    p->grads[1] = p->memory + 2 * COUNT;
    CHECK(gsync_reducer_create(&p->reducer, comm, options) == GSYNC_OK);
    CHECK(gsync_reducer_add(p->reducer, "a", p->grads[0], COUNT, GSYNC_FLOAT32) == GSYNC_OK);
    CHECK(gsync_reducer_add(p->reducer, "b", p->grads[1], COUNT, GSYNC_FLOAT32) == GSYNC_OK);
}

static void pair_open(pair *p, gsync_comm *comm, const gsync_options *options) {
    pair_make(p, comm, options);
    CHECK_STATUS(gsync_reducer_commit(p->reducer), GSYNC_OK, "");
    OK(simcuda_poison(p->compute, p->memory, 3 * COUNT * sizeof(float)));
    OK(cudaStreamSynchronize(p->compute)); /* some tests mark nothing */
}

static void pair_close(pair *p) {
    gsync_reducer_destroy(&p->reducer);
    OK(cudaStreamSynchronize(p->compute));
    OK(cudaStreamDestroy(p->compute));
    OK(cudaFree(p->memory));
}

typedef struct fill_job {
    float *to;
    float value;
} fill_job;

static void fill_kernel(void *argument) {
    const fill_job *job = argument;
    for (int i = 0; i < COUNT; i++) {
        job->to[i] = job->value;
    }
}

static void fill(const pair *p, int g, float value) {
    const fill_job job = {p->grads[g], value};
    const simcuda_access access = {p->grads[g], COUNT * sizeof(float), 1};
    OK(simcuda_launch(p->compute, fill_kernel, &job, sizeof job, "fill", &access, 1));
}

static float first_of(const pair *p, int g) {
    static _Thread_local float value;
    OK(cudaMemcpyAsync(&value, p->grads[g], sizeof value, cudaMemcpyDefault, p->compute));
    OK(cudaStreamSynchronize(p->compute));
    return value;
}

static void step_on_host(const pair *p, float value) {
    CHECK_STATUS(gsync_begin(p->reducer, GSYNC_SYNC), GSYNC_OK, "");
    for (int g = 1; g >= 0; g--) {
        fill(p, g, value);
        CHECK_STATUS(gsync_ready_on(p->reducer, p->grads[g], p->compute), GSYNC_OK, "");
    }
    CHECK_STATUS(gsync_finish(p->reducer, NULL), GSYNC_OK, "");
}

/* ---- commit ---- */

static void tell_mixtures(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    gsync_reducer *reducer = NULL;
    static float on_host[2][COUNT];
    float *on_device;
    OK(cudaMalloc((void **)&on_device, COUNT * sizeof(float)));
    CHECK(gsync_reducer_create(&reducer, comm, NULL) == GSYNC_OK);
    CHECK(gsync_reducer_add(reducer, "near", on_host[rank], COUNT, GSYNC_FLOAT32) == GSYNC_OK);
    CHECK(gsync_reducer_add(reducer, "far", rank == 0 ? on_device : on_host[rank] + COUNT / 2, COUNT / 2,
                            GSYNC_FLOAT32) == GSYNC_OK ||
          rank == 1);
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_ERR_ARGUMENT, rank == 0 ? "'far'" : "");
    gsync_reducer_destroy(&reducer);
    OK(cudaFree(on_device));
}

static void mixtures_are_refused_by_name_on_all_ranks(void **state) {
    (void)state;
    tell(2, tell_mixtures);
}

static void tell_another_device(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    pair_make(&p, comm, NULL);
    OK(cudaSetDevice(rank == 1 ? 5 : 0));
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_ERR_ARGUMENT, "'a' is on GPU 1, and the reducer's is GPU 5");
    OK(cudaSetDevice(rank));
    /* The others may try again, and so may this rank. */
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    step_on_host(&p, 3.0f);
    CHECK(first_of(&p, 0) == 3.0f);
    pair_close(&p);
}

static void a_device_that_is_not_current_is_refused(void **state) {
    (void)state;
    tell(2, tell_another_device);
}

/* ---- calls ---- */

static void tell_wrong_calls(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    (void)rank;
    static float grad[RANKS_MAX][COUNT];
    gsync_reducer *host = NULL;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(gsync_reducer_create(&host, comm, NULL) == GSYNC_OK);
    CHECK(gsync_reducer_add(host, "g", grad[rank], COUNT, GSYNC_FLOAT32) == GSYNC_OK);
    CHECK_STATUS(gsync_ready_on(host, grad[rank], stream), GSYNC_ERR_STATE, "gsync_ready_on");
    CHECK_STATUS(gsync_reducer_commit(host), GSYNC_OK, "");
    CHECK_STATUS(gsync_begin(host, GSYNC_SYNC), GSYNC_OK, "");
    CHECK_STATUS(gsync_ready_on(host, grad[rank], stream), GSYNC_ERR_ARGUMENT, "host memory");
    CHECK_STATUS(gsync_finish_on(host, stream, NULL), GSYNC_ERR_ARGUMENT, "host memory");
    CHECK_STATUS(gsync_finish(host, NULL), GSYNC_OK, "");
    CHECK_STATUS(gsync_ready_on(NULL, grad[rank], stream), GSYNC_ERR_ARGUMENT, "NULL");
    CHECK_STATUS(gsync_finish_on(NULL, stream, NULL), GSYNC_ERR_ARGUMENT, "NULL");
    gsync_reducer_destroy(&host);
    OK(cudaStreamDestroy(stream));
}

static void gradients_on_the_host_have_no_streams(void **state) {
    (void)state;
    tell(2, tell_wrong_calls);
}

static void tell_captures(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    (void)rank;
    pair p = {0};
    cudaGraph_t graph;
    pair_open(&p, comm, NULL);
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    OK(cudaStreamSynchronize(p.compute));
    OK(cudaStreamBeginCapture(p.compute, cudaStreamCaptureModeRelaxed));
    const uint64_t records = simcuda_calls("cudaEventRecord");
    CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[1], p.compute), GSYNC_ERR_UNSUPPORTED, "captured");
    CHECK_STATUS(gsync_finish_on(p.reducer, p.compute, NULL), GSYNC_ERR_UNSUPPORTED, "captured");
    CHECK(simcuda_calls("cudaEventRecord") == records || c->comms[1] != NULL);
    OK(cudaStreamEndCapture(p.compute, &graph));
    OK(cudaGraphDestroy(graph));
    fill(&p, 0, 1.0f);
    fill(&p, 1, 1.0f);
    CHECK_STATUS(gsync_finish_on(p.reducer, p.compute, NULL), GSYNC_OK, "");
    CHECK(first_of(&p, 0) == 1.0f);
    pair_close(&p);
}

static void streams_that_are_captured_are_refused(void **state) {
    (void)state;
    tell(2, tell_captures);
}

static void tell_scaler(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    (void)rank;
    pair p = {0};
    gsync_scaler *scaler = NULL;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    CHECK(gsync_scaler_create(&scaler, NULL) == GSYNC_OK);
    pair_open(&p, comm, NULL);
    CHECK(gsync_reducer_set_scaler(p.reducer, scaler) == GSYNC_OK);
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    for (int g = 0; g < 2; g++) {
        fill(&p, g, g == 0 || rank == 0 ? 3.0f * (float)gsync_scaler_scale(scaler) : INFINITY);
        CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[g], p.compute), GSYNC_OK, "");
    }
    CHECK_STATUS(gsync_finish_on(p.reducer, p.compute, NULL), GSYNC_ERR_STATE, "gsync_finish");
    CHECK_STATUS(gsync_finish(p.reducer, &info), GSYNC_OK, "");
    CHECK(info.found_inf == 1 && info.found_inf_rank == 1);
    CHECK(info.found_inf_gradient != NULL && strcmp(info.found_inf_gradient, "b") == 0);
    CHECK(first_of(&p, 0) == 3.0f);
    CHECK(gsync_scaler_update(scaler) == GSYNC_OK);
    CHECK(gsync_scaler_scale(scaler) == 32768.0);
    pair_close(&p);
    gsync_scaler_destroy(&scaler);
}

static void a_scaler_needs_the_host(void **state) {
    (void)state;
    tell(2, tell_scaler);
}

/* ---- what ranks tell each other ---- */

static void tell_forgotten(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.is_strict = 1;
    options.bucket_bytes_max = 4;
    pair_open(&p, comm, &options);
    for (int step = 0; step < 2; step++) {
        const int forgetful = step == 0 ? 1 : -1;
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
        for (int g = 1; g >= 0; g--) {
            fill(&p, g, 2.0f);
            if (rank != forgetful || g == 0) {
                CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[g], p.compute), GSYNC_OK, "");
            }
        }
        OK(cudaStreamSynchronize(p.compute));
        const gsync_status wanted = step == 0 ? GSYNC_ERR_INCOMPLETE : GSYNC_OK;
        CHECK_STATUS(gsync_finish(p.reducer, NULL), wanted, "rank 1: 'b'");
    }
    /* With no host to wait, the next call tells. */
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    for (int g = 1; g >= 0; g--) {
        fill(&p, g, 2.0f);
        if (rank != 0 || g == 1) {
            CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[g], p.compute), GSYNC_OK, "");
        }
    }
    CHECK_STATUS(gsync_finish_on(p.reducer, p.compute, NULL), GSYNC_OK, "");
    OK(cudaDeviceSynchronize());
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_ERR_INCOMPLETE, "rank 0: 1 gradients");
    step_on_host(&p, 5.0f);
    CHECK(first_of(&p, 1) == 5.0f);
    pair_close(&p);
}

static void forgotten_gradients_end_on_all_ranks(void **state) {
    (void)state;
    tell(3, tell_forgotten);
}

static void tell_windows(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    pair_open(&p, comm, NULL);
    if (rank == 1) {
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_ACCUMULATE), GSYNC_OK, "");
        CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_OK, "");
    }
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_ERR_MISMATCH, "rank 1 closed a window of 2 micro-batches");
    step_on_host(&p, 1.0f);
    pair_close(&p);
}

static void windows_of_other_lengths_are_noticed(void **state) {
    (void)state;
    tell(2, tell_windows);
}

static void tell_lost(crew *c, int rank, gsync_comm *comm) {
    pair p = {0};
    pair_open(&p, comm, NULL);
    step_on_host(&p, 1.0f);
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    if (rank == 0) {
        const gsync_status status = gsync_finish(p.reducer, NULL);
        CHECK(status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_PEER_LOST);
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_ERR_STATE, "destroy");
        atomic_store(&c->arrived, 1);
    }
    pair_close(&p); /* the other rank leaves in the middle of its step */
}

static void a_rank_that_leaves_is_noticed(void **state) {
    (void)state;
    tell(2, tell_lost);
}

static void tell_late(crew *c, int rank, gsync_comm *comm) {
    pair p = {0};
    pair_open(&p, comm, NULL);
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    if (rank == 0) {
        CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_ERR_TIMEOUT, "rank 1 has launched 0 of 1 buckets");
        atomic_store(&c->arrived, 1);
    } else {
        while (atomic_load(&c->arrived) == 0) {
            sched_yield();
        }
        /* Of the bucket, or of the order that follows it: which deadline passed first. */
        const gsync_status status = gsync_finish(p.reducer, NULL);
        CHECK(status == GSYNC_ERR_PEER_LOST || status == GSYNC_ERR_ABORTED);
        CHECK(strstr(gsync_last_error(), status == GSYNC_ERR_ABORTED ? "aborted by rank 0" : "noticed by rank 0") !=
              NULL);
    }
    pair_close(&p);
}

static void a_rank_that_never_arrives_ends_in_a_timeout(void **state) {
    (void)state;
    tell(2, tell_late);
}

/* ---- plans that change ---- */

static void tell_changes(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.bucket_bytes_max = 4;
    pair_open(&p, comm, &options);
    CHECK(gsync_bucket_of(p.reducer, "b") == 0);
    for (int step = 0; step < 3; step++) {
        CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
        for (int g = 0; g < 2; g++) {
            fill(&p, g, (float)(g + step + rank));
            CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[g], p.compute), GSYNC_OK, "");
        }
        CHECK_STATUS(gsync_finish_on(p.reducer, p.compute, NULL), GSYNC_OK, "");
        CHECK(first_of(&p, 1) == 1.5f + (float)step);
        CHECK(gsync_bucket_of(p.reducer, "b") == (step == 0 ? 0 : 1)); /* agreed by the next begin */
    }
    CHECK(gsync_reducer_set_trainable(p.reducer, "a", 0) == GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    fill(&p, 0, (float)(10 + rank));
    fill(&p, 1, (float)(20 + rank));
    CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[0], p.compute), GSYNC_ERR_ARGUMENT, "frozen");
    CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[1], p.compute), GSYNC_OK, "");
    CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_OK, "");
    CHECK(first_of(&p, 0) == (float)(10 + rank));
    CHECK(first_of(&p, 1) == 20.5f);
    pair_close(&p);
}

static void orders_are_agreed_and_gradients_frozen(void **state) {
    (void)state;
    tell(2, tell_changes);
}

static void tell_uses(crew *c, int rank, gsync_comm *comm) {
    (void)c;
    pair p = {0};
    cudaStream_t second;
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    pair_make(&p, comm, NULL);
    CHECK(gsync_reducer_set_uses(p.reducer, "a", 2) == GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(p.reducer), GSYNC_OK, "");
    CHECK_STATUS(gsync_begin(p.reducer, GSYNC_SYNC), GSYNC_OK, "");
    fill(&p, 1, 0.0f);
    CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[1], p.compute), GSYNC_OK, "");
    fill(&p, 0, 1.0f);
    CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[0], p.compute), GSYNC_OK, "");
    OK(cudaStreamSynchronize(p.compute));
    pair other = p;
    other.compute = second;
    fill(&other, 0, (float)(2 + rank));
    CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[0], second), GSYNC_OK, "");
    CHECK_STATUS(gsync_ready_on(p.reducer, p.grads[0], second), GSYNC_ERR_ALREADY_READY, "more than 2 times");
    CHECK_STATUS(gsync_finish(p.reducer, NULL), GSYNC_OK, "");
    CHECK(first_of(&p, 0) == 2.5f);
    pair_close(&p);
    OK(cudaStreamDestroy(second));
}

static void shared_weights_wait_for_all_their_streams(void **state) {
    (void)state;
    tell(2, tell_uses);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixtures_are_refused_by_name_on_all_ranks),
        cmocka_unit_test(a_device_that_is_not_current_is_refused),
        cmocka_unit_test(gradients_on_the_host_have_no_streams),
        cmocka_unit_test(streams_that_are_captured_are_refused),
        cmocka_unit_test(a_scaler_needs_the_host),
        cmocka_unit_test(forgotten_gradients_end_on_all_ranks),
        cmocka_unit_test(windows_of_other_lengths_are_noticed),
        cmocka_unit_test(a_rank_that_leaves_is_noticed),
        cmocka_unit_test(a_rank_that_never_arrives_ends_in_a_timeout),
        cmocka_unit_test(orders_are_agreed_and_gradients_frozen),
        cmocka_unit_test(shared_weights_wait_for_all_their_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
