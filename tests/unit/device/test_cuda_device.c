/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* Devices, places, streams and memory, on a simulated machine. */

#include "cuda_fixture.h"
#include "simcuda.h"

#include <string.h>

#define SEED 20261202

/* ---- which device ---- */

typedef struct mapping {
    int local_rank;
    int visible_count;
    int device;
} mapping;

/* GS-89: CUDA_VISIBLE_DEVICES "4,5,6,7" shows four, "3" or one UUID one, "" or "-1" none; a second host's ranks have
 * local ranks of their own. */
static void GS_89_local_ranks_go_round_the_visible_devices(void **state) {
    static const mapping mappings[] = {{0, 8, 0}, {7, 8, 7}, {0, 4, 0},  {3, 4, 3},   {4, 4, 0},  {9, 4, 1},
                                       {0, 1, 0}, {5, 1, 0}, {0, 0, -1}, {3, -1, -1}, {-1, 4, -1}};
    (void)state;
    for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++) {
        assert_int_equal(gs_cuda_device_for(mappings[i].local_rank, mappings[i].visible_count), mappings[i].device);
    }
}

static void GS_89_the_runtime_says_how_many_devices_are_visible(void **state) {
    static const int counts[] = {0, 1, 4};
    (void)state;
    simcuda_reset();
    for (size_t i = 0; i < 3; i++) {
        simcuda_set_device_count(counts[i]);
        assert_int_equal(gs_cuda_visible_count(), counts[i]);
    }
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    assert_int_equal(simcuda_calls("cudaSetDevice"), 0);
}

/* ---- a machine without what it takes ---- */

static void a_machine_without_a_gpu_is_refused_in_the_runtimes_words(void **state) {
    gs_cuda *cuda = NULL;
    (void)state;
    simcuda_reset();
    simcuda_set_device_count(0);
    assert_int_equal(gs_cuda_open(&cuda), GSYNC_ERR_UNSUPPORTED);
    assert_null(cuda);
    assert_non_null(strstr(gsync_last_error(), cudaGetErrorString(cudaErrorNoDevice)));
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
}

typedef struct refusal {
    const char *call;
    cudaError_t error;
    gsync_status status;
} refusal;

static void what_fails_when_a_device_is_opened_is_reported_and_nothing_is_left(void **state) {
    static const refusal refusals[] = {
        {"cudaGetDeviceCount", cudaErrorInsufficientDriver, GSYNC_ERR_UNSUPPORTED},
        {"cudaGetDevice", cudaErrorInitializationError, GSYNC_ERR_TRANSPORT},
        {"cudaDeviceGetPCIBusId", cudaErrorInvalidDevice, GSYNC_ERR_TRANSPORT},
        {"cudaFuncGetAttributes", cudaErrorNoKernelImageForDevice, GSYNC_ERR_UNSUPPORTED},
        {"cudaStreamCreateWithFlags", cudaErrorMemoryAllocation, GSYNC_ERR_MEMORY},
    };
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        gs_cuda *cuda = NULL;
        simcuda_reset();
        simcuda_fault(refusals[i].call, SIMCUDA_ANY_RANK, 1, SIMCUDA_RETURNS, (int)refusals[i].error);
        assert_int_equal(gs_cuda_open(&cuda), refusals[i].status);
        assert_null(cuda);
        assert_non_null(strstr(gsync_last_error(), cudaGetErrorName(refusals[i].error)));
        assert_int_equal(simcuda_objects(), 0);
    }
}

/* ---- places ---- */

static void places_of_memory_are_told_apart(void **state) {
    const gpu *const on = *state;
    void *pinned;
    int device = 7;
    int local = 0;
    char *const memory = gpu_new(on, 100);
    assert_int_equal(gs_cuda_pinned_new(on->cuda, &pinned, 100, "a test's memory"), GSYNC_OK);
    assert_int_equal(gs_cuda_place_of(memory + 99, &device), GS_PLACE_DEVICE);
    assert_int_equal(device, gs_cuda_device(on->cuda));
    assert_int_equal(gs_cuda_place_of(pinned, &device), GS_PLACE_HOST);
    assert_int_equal(device, -1);
    assert_int_equal(gs_cuda_place_of(&local, &device), GS_PLACE_HOST);
    assert_int_equal(gs_cuda_place_of(NULL, &device), GS_PLACE_HOST);
    simcuda_fault("cudaPointerGetAttributes", SIMCUDA_ANY_RANK, 1, SIMCUDA_RETURNS, cudaErrorInsufficientDriver);
    assert_int_equal(gs_cuda_place_of(memory, &device), GS_PLACE_HOST);
    assert_int_equal(device, -1);
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    gs_cuda_pinned_free(on->cuda, pinned);
    gs_cuda_free(on->cuda, memory);
}

/* ---- the trainer's current device ---- */

static void use_everything(const gpu *on) {
    static const unsigned char zeroes[64];
    bucket made = bucket_random(on, GSYNC_FLOAT32, ORDINARY, true, SEED);
    gs_cuda_pass pass = pass_of(&made, GSYNC_FLOAT32);
    unsigned char *const memory = gpu_new(on, made.count * sizeof(float) + sizeof zeroes);
    unsigned char got[sizeof zeroes];
    void *event;
    void *pinned;
    bool is;
    assert_int_equal(gs_cuda_event_new(on->cuda, &event), GSYNC_OK);
    assert_int_equal(gs_cuda_pinned_new(on->cuda, &pinned, 64, "a test's memory"), GSYNC_OK);
    assert_memory_equal(pinned, zeroes, sizeof zeroes);
    assert_int_equal(gs_cuda_encode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    assert_int_equal(gs_cuda_decode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    assert_int_equal(gs_cuda_zero(on->cuda, memory, sizeof zeroes, on->stream), GSYNC_OK);
    assert_int_equal(gs_cuda_record(on->cuda, event, on->stream), GSYNC_OK);
    assert_int_equal(gs_cuda_wait(on->cuda, on->stream, event), GSYNC_OK);
    assert_int_equal(gs_cuda_is_capturing(on->cuda, on->stream, &is), GSYNC_OK);
    assert_false(is);
    gpu_get(on, got, memory, sizeof got);
    assert_memory_equal(got, zeroes, sizeof zeroes);
    assert_int_equal(gs_cuda_is_done(on->cuda, event, &is), GSYNC_OK);
    assert_true(is);
    gs_cuda_event_free(on->cuda, event);
    gs_cuda_pinned_free(on->cuda, pinned);
    gs_cuda_free(on->cuda, memory);
    bucket_free(on, &made);
}

static void the_current_device_is_never_changed_where_it_is_the_reducers(void **state) {
    use_everything(*state);
    assert_int_equal(simcuda_calls("cudaSetDevice"), 0);
}

static void the_current_device_is_as_it_was_where_it_is_another(void **state) {
    gpu other = {NULL, NULL};
    int current = -1;
    (void)state;
    assert_int_equal(cudaSetDevice(3), cudaSuccess);
    assert_int_equal(gs_cuda_open(&other.cuda), GSYNC_OK);
    assert_int_equal(gs_cuda_stream_new(other.cuda, true, &other.stream), GSYNC_OK);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    use_everything(&other);
    void *const memory = gpu_new(&other, 8);
    int device;
    assert_int_equal(gs_cuda_place_of(memory, &device), GS_PLACE_DEVICE);
    assert_int_equal(device, 3);
    gs_cuda_free(other.cuda, memory);
    gs_cuda_stream_free(other.cuda, other.stream);
    gs_cuda_close(other.cuda);
    assert_int_equal(cudaGetDevice(&current), cudaSuccess);
    assert_int_equal(current, 1);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
}

/* ---- streams, events, memory ---- */

static void streams_do_not_block_and_take_the_highest_priority_only_if_asked(void **state) {
    const gpu *const on = *state;
    int lowest;
    int highest;
    int priority;
    unsigned flags;
    void *ordinary;
    assert_int_equal(cudaDeviceGetStreamPriorityRange(&lowest, &highest), cudaSuccess);
    assert_int_equal(gs_cuda_stream_new(on->cuda, false, &ordinary), GSYNC_OK);
    assert_int_equal(cudaStreamGetPriority(ordinary, &priority), cudaSuccess);
    assert_int_equal(priority, lowest);
    assert_int_equal(cudaStreamGetPriority(on->stream, &priority), cudaSuccess);
    assert_int_equal(priority, highest);
    assert_int_equal(cudaStreamGetFlags(on->stream, &flags), cudaSuccess);
    assert_int_equal(flags, cudaStreamNonBlocking);
    gs_cuda_stream_free(on->cuda, ordinary);
}

static void an_event_is_done_when_the_work_before_it_is(void **state) {
    const gpu *const on = *state;
    void *event;
    bool is_done = true;
    void *const memory = gpu_new(on, 64);
    assert_int_equal(gs_cuda_event_new(on->cuda, &event), GSYNC_OK);
    simcuda_hold(on->stream);
    assert_int_equal(gs_cuda_zero(on->cuda, memory, 64, on->stream), GSYNC_OK);
    assert_int_equal(gs_cuda_record(on->cuda, event, on->stream), GSYNC_OK);
    assert_int_equal(gs_cuda_is_done(on->cuda, event, &is_done), GSYNC_OK);
    assert_false(is_done);
    simcuda_release(on->stream);
    assert_int_equal(cudaEventSynchronize(event), cudaSuccess);
    assert_int_equal(gs_cuda_is_done(on->cuda, event, &is_done), GSYNC_OK);
    assert_true(is_done);
    gs_cuda_event_free(on->cuda, event);
    gs_cuda_free(on->cuda, memory);
}

static void a_captured_stream_is_recognised(void **state) {
    const gpu *const on = *state;
    bool is_capturing = false;
    cudaGraph_t graph;
    assert_int_equal(cudaStreamBeginCapture(on->stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(gs_cuda_is_capturing(on->cuda, on->stream, &is_capturing), GSYNC_OK);
    assert_true(is_capturing);
    assert_int_equal(cudaStreamEndCapture(on->stream, &graph), cudaSuccess);
}

static void memory_that_cannot_be_had_is_said_so_and_nothing_is_left(void **state) {
    const gpu *const on = *state;
    static const char *const calls[] = {"cudaMalloc", "cudaMemsetAsync", "cudaStreamSynchronize"};
    void *memory = &memory;
    for (size_t i = 0; i < 3; i++) {
        simcuda_fault(calls[i], SIMCUDA_ANY_RANK, 1, SIMCUDA_RETURNS, cudaErrorMemoryAllocation);
        assert_int_equal(gs_cuda_new(on->cuda, &memory, 64, "the buckets"), GSYNC_ERR_MEMORY);
        assert_null(memory);
        assert_non_null(strstr(gsync_last_error(), "the buckets"));
        assert_int_equal(simcuda_allocations(), 0);
        assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    }
    simcuda_fault("cudaHostAlloc", SIMCUDA_ANY_RANK, 1, SIMCUDA_RETURNS, cudaErrorMemoryAllocation);
    assert_int_equal(gs_cuda_pinned_new(on->cuda, &memory, 64, "the mail"), GSYNC_ERR_MEMORY);
    assert_null(memory);
}

static void no_bytes_are_no_memory(void **state) {
    const gpu *const on = *state;
    void *memory = &memory;
    assert_int_equal(gs_cuda_new(on->cuda, &memory, 0, "nothing"), GSYNC_OK);
    assert_null(memory);
    assert_int_equal(gs_cuda_pinned_new(on->cuda, &memory, 0, "nothing"), GSYNC_OK);
    assert_null(memory);
    assert_int_equal(gs_cuda_copy(on->cuda, NULL, NULL, 0, on->stream), GSYNC_OK);
    assert_int_equal(gs_cuda_zero(on->cuda, NULL, 0, on->stream), GSYNC_OK);
}

static void a_launch_that_fails_is_reported_once(void **state) {
    const gpu *const on = *state;
    float *const memory = gpu_new(on, 64);
    simcuda_fault("simcuda_launch", SIMCUDA_ANY_RANK, 1, SIMCUDA_RETURNS, cudaErrorLaunchFailure);
    const gs_cuda_combination sum = {.parts = memory, .ranks = 1, .shard = memory, .count = 16, .wire = GSYNC_FLOAT32};
    assert_int_equal(gs_cuda_combine(on->cuda, &sum, on->stream), GSYNC_ERR_TRANSPORT);
    assert_non_null(strstr(gsync_last_error(), "cudaErrorLaunchFailure"));
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    gs_cuda_free(on->cuda, memory);
}

/* ThreadSanitizer would end the program with a report of its own. */
#if defined(__SANITIZE_THREAD__)
#define REPORTS_RACES 1
#elif defined(__has_feature)
#define REPORTS_RACES __has_feature(thread_sanitizer)
#else
#define REPORTS_RACES 0
#endif

static void a_missing_wait_before_a_pass_is_noticed(void **state) {
    if (REPORTS_RACES) {
        skip();
    }
    const gpu *const on = *state;
    void *producer;
    float *const memory = gpu_new(on, 64);
    assert_int_equal(gs_cuda_stream_new(on->cuda, false, &producer), GSYNC_OK);
    assert_int_equal(gs_cuda_zero(on->cuda, memory, 64, producer), GSYNC_OK);
    const gs_cuda_combination sum = {.parts = memory, .ranks = 1, .shard = memory, .count = 16, .wire = GSYNC_FLOAT32};
    assert_int_equal(gs_cuda_combine(on->cuda, &sum, on->stream), GSYNC_OK);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    simcuda_report report;
    assert_int_not_equal(simcuda_reports(&report, 1), 0);
    assert_int_equal(report.kind, SIMCUDA_RACE);
    assert_true(strcmp(report.first, "combine") == 0 || strcmp(report.second, "combine") == 0);
    gs_cuda_stream_free(on->cuda, producer);
    gs_cuda_free(on->cuda, memory);
    simcuda_wait_idle();
    simcuda_reset();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(GS_89_local_ranks_go_round_the_visible_devices),
        cmocka_unit_test(GS_89_the_runtime_says_how_many_devices_are_visible),
        cmocka_unit_test(a_machine_without_a_gpu_is_refused_in_the_runtimes_words),
        cmocka_unit_test(what_fails_when_a_device_is_opened_is_reported_and_nothing_is_left),
        TEST(places_of_memory_are_told_apart),
        TEST(the_current_device_is_never_changed_where_it_is_the_reducers),
        TEST(the_current_device_is_as_it_was_where_it_is_another),
        TEST(streams_do_not_block_and_take_the_highest_priority_only_if_asked),
        TEST(an_event_is_done_when_the_work_before_it_is),
        TEST(a_captured_stream_is_recognised),
        TEST(memory_that_cannot_be_had_is_said_so_and_nothing_is_left),
        TEST(no_bytes_are_no_memory),
        TEST(a_launch_that_fails_is_reported_once),
        TEST(a_missing_wait_before_a_pass_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
