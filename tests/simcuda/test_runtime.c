/* SPDX-License-Identifier: Apache-2.0 */
#include "two_streams.h"

#include <signal.h>
#include <string.h>

static cudaStream_t new_stream(unsigned flags) {
    cudaStream_t stream = NULL;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
    return stream;
}

static float *new_values(void) {
    float *values = NULL;
    assert_int_equal(cudaMalloc((void **)&values, ELEMENTS * sizeof(float)), cudaSuccess);
    return values;
}

static void launch(cudaStream_t stream, float *values, float value) {
    const fill_arguments arguments = {values, value};
    const simcuda_access access = {values, ELEMENTS * sizeof(float), 1};
    assert_int_equal(simcuda_launch(stream, fill, &arguments, sizeof arguments, "fill", &access, 1), cudaSuccess);
}

static float read_last(cudaStream_t stream, const float *values) {
    float value = 0;
    assert_int_equal(cudaMemcpyAsync(&value, values + ELEMENTS - 1, sizeof value, cudaMemcpyDeviceToHost, stream),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    return value;
}

static void describes_devices_as_asked_for(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_set_device_count(2);
    simcuda_set_bus_id(1, "0001:AB:00.0");
    int value = 0;
    char text[32];
    assert_int_equal(cudaGetDeviceCount(&value), cudaSuccess);
    assert_int_equal(value, 2);
    assert_int_equal(cudaDeviceGetPCIBusId(text, sizeof text, 1), cudaSuccess);
    assert_string_equal(text, "0001:AB:00.0");
    assert_int_equal(cudaDeviceGetByPCIBusId(&value, "0001:ab:00.0"), cudaSuccess);
    assert_int_equal(value, 1);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaSuccess);

    simcuda_set_device_count(0);
    cudaStream_t stream = NULL;
    void *memory = NULL;
    assert_int_equal(cudaGetDeviceCount(&value), cudaErrorNoDevice);
    assert_int_equal(cudaRuntimeGetVersion(&value), cudaSuccess);
    assert_int_equal(cudaGetDevice(&value), cudaErrorNoDevice);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaErrorNoDevice);
    assert_int_equal(cudaMalloc(&memory, 4), cudaErrorNoDevice);
    assert_string_equal(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice");
}

static void tells_device_page_locked_and_ordinary_memory_apart(void **state) {
    (void)state;
    simcuda_reset();
    const uint64_t before = simcuda_allocations();
    float *device = new_values();
    float *host = NULL;
    float ordinary[4];
    struct cudaPointerAttributes attributes;
    assert_int_equal(cudaMallocHost((void **)&host, 16), cudaSuccess);
    assert_int_equal(simcuda_allocations(), before + 2);
    assert_int_equal(cudaPointerGetAttributes(&attributes, device + ELEMENTS - 1), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    assert_int_equal(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    assert_int_equal(cudaPointerGetAttributes(&attributes, ordinary), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
    assert_int_equal(cudaFree(host), cudaErrorInvalidValue);
    assert_int_equal(cudaFreeHost(host), cudaSuccess);
    assert_int_equal(cudaFree(device), cudaSuccess);
    assert_int_equal(simcuda_allocations(), before);
}

static void new_memory_holds_nans_and_so_does_poisoned_memory(void **state) {
    (void)state;
    simcuda_reset();
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    float *values = new_values();
    const float fresh = read_last(stream, values);
    assert_true(fresh != fresh);
    launch(stream, values, 3);
    assert_true(read_last(stream, values) == 3);
    assert_int_equal(simcuda_poison(stream, values, ELEMENTS * sizeof(float)), cudaSuccess);
    const float poisoned = read_last(stream, values);
    assert_true(poisoned != poisoned);
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

/* Runs `touch` in a process of its own. Returns whether it ended early, having said `what` on its stderr. */
static int dies_saying(void (*touch)(float *), const char *what) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        signal(SIGSEGV, SIG_DFL); /* not cmocka's, which would go on with the tests */
        dup2(ends[1], STDERR_FILENO);
        touch(new_values());
        _exit(0);
    }
    close(ends[1]);
    char text[4096] = "";
    size_t length = 0;
    for (ssize_t got = 1; got > 0 && length<sizeof text - 1; length += got> 0 ? (size_t)got : 0) {
        got = read(ends[0], text + length, sizeof text - 1 - length);
    }
    text[length] = 0;
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(process, &status, 0), process);
    return status != 0 && strstr(text, what) != NULL;
}

static void touch_device_memory(float *values) {
    *(volatile float *)values = 1;
}

static void touch_behind_it(float *values) {
    *(volatile float *)(values + ELEMENTS) = 1;
}

static void touch_freed_memory(float *values) {
    assert_int_equal(cudaFree(values), cudaSuccess);
    *(volatile float *)values = 1;
}

static void the_host_cannot_touch_device_memory(void **state) {
    (void)state;
    simcuda_reset();
    assert_true(dies_saying(touch_device_memory, "simcuda: the host touched device memory"));
    assert_true(dies_saying(touch_behind_it, "simcuda: the host touched what lies behind device memory"));
    assert_true(dies_saying(touch_freed_memory, "simcuda: the host touched device memory that was freed"));
}

static void refuses_and_reports_copies_of_the_wrong_kind_or_length(void **state) {
    (void)state;
    simcuda_reset();
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    float *values = new_values();
    float host[2] = {0};
    assert_int_equal(cudaMemcpyAsync(host, values, 8, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(host, values + ELEMENTS - 1, 8, cudaMemcpyDeviceToHost, stream),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(host, 0, 8, stream), cudaErrorInvalidValue);
    simcuda_report reports[4];
    assert_int_equal(simcuda_reports(reports, 4), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(reports[i].kind, SIMCUDA_WRONG_MEMORY);
    }
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void the_default_stream_waits_for_blocking_streams_only_and_is_counted(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    simcuda_reset();
    cudaStream_t blocking = new_stream(cudaStreamDefault);
    cudaStream_t free_running = new_stream(cudaStreamNonBlocking);
    float *values = new_values();
    assert_int_equal(simcuda_default_stream_uses(), 0);
    launch(blocking, values, 1);
    launch(NULL, values, 2);
    launch(blocking, values, 3);
    simcuda_wait_idle();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
    assert_int_equal(simcuda_default_stream_uses(), 1);

    launch(free_running, values, 4);
    simcuda_wait_idle();
    simcuda_report report;
    assert_int_equal(simcuda_reports(&report, 1), 1);
    assert_string_equal(report.second, "fill");
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(blocking), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(free_running), cudaSuccess);
}

static void counts_what_was_called(void **state) {
    (void)state;
    simcuda_reset();
    const uint64_t objects = simcuda_objects();
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    cudaEvent_t event = NULL;
    float *values = new_values();
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(simcuda_objects(), objects + 2);
    launch(stream, values, 1);
    launch(stream, values, 1);
    assert_int_equal(cudaEventRecord(event, stream), cudaSuccess);
    assert_int_equal(cudaEventSynchronize(event), cudaSuccess);
    assert_int_equal(cudaEventQuery(event), cudaSuccess);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(simcuda_launches("fill"), 2);
    assert_int_equal(simcuda_all_launches(), 2);
    assert_int_equal(simcuda_calls("cudaEventRecord"), 1);
    assert_int_equal(simcuda_host_synchronisations(), 1);
    assert_int_equal(simcuda_calls("cudaSetDevice"), 3);
    assert_int_equal(simcuda_device_changes(), 2);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    assert_int_equal(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
    assert_int_equal(simcuda_objects(), objects);
}

static void a_destroyed_stream_runs_what_it_has(void **state) {
    (void)state;
    simcuda_reset();
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    cudaStream_t other = new_stream(cudaStreamNonBlocking);
    float *values = new_values();
    cudaEvent_t event = NULL;
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    simcuda_hold(stream);
    launch(stream, values, 5);
    assert_int_equal(cudaEventRecord(event, stream), cudaSuccess);
    simcuda_release(stream);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
    assert_true(read_last(other, values) == 5);
    assert_int_equal(simcuda_reports(NULL, 0), 0);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
}

static void keep_value(void *argument) {
    atomic_store((atomic_int *)argument, 7);
}

static void runs_host_functions_in_order(void **state) {
    (void)state;
    simcuda_reset();
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    atomic_int value = 0;
    simcuda_hold(stream);
    assert_int_equal(cudaLaunchHostFunc(stream, keep_value, &value), cudaSuccess);
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    assert_int_equal(atomic_load(&value), 0);
    simcuda_release(stream);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(atomic_load(&value), 7);
    assert_int_equal(cudaStreamQuery(stream), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void a_capturing_stream_says_so_and_runs_nothing(void **state) {
    (void)state;
    simcuda_reset();
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    float *values = new_values();
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = NULL;
    launch(stream, values, 1);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    assert_int_equal(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    launch(stream, values, 2);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    assert_true(read_last(stream, values) == 1);
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void tells_the_time_between_events_that_have_one(void **state) {
    enum { DELAY_US = 2000 };
    (void)state;
    simcuda_reset();
    float ms = -1;
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    cudaEvent_t events[3];
    float *values = new_values();
    assert_int_equal(cudaEventCreate(&events[0]), cudaSuccess);
    assert_int_equal(cudaEventCreate(&events[1]), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&events[2], cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&ms, events[0], events[1]), cudaErrorInvalidResourceHandle); /* no records */
    simcuda_delay(stream, DELAY_US);
    assert_int_equal(cudaEventRecord(events[0], stream), cudaSuccess);
    launch(stream, values, 1);
    simcuda_hold(stream);
    assert_int_equal(cudaEventRecord(events[1], stream), cudaSuccess);
    assert_int_equal(cudaEventRecord(events[2], stream), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&ms, events[0], events[1]), cudaErrorNotReady);
    simcuda_release(stream);
    assert_int_equal(cudaEventSynchronize(events[2]), cudaSuccess);
    assert_true(ms == -1);
    assert_int_equal(cudaEventElapsedTime(&ms, events[0], events[2]), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaEventElapsedTime(&ms, events[0], events[1]), cudaSuccess);
    assert_true(ms >= 2 * DELAY_US / 1000.0); /* the kernel's and the second record's */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cudaEventDestroy(events[i]), cudaSuccess);
    }
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void fails_calls_as_asked_for(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_thread_rank(3);
    simcuda_fault("cudaMalloc", 3, 2, SIMCUDA_RETURNS, cudaErrorMemoryAllocation);
    simcuda_fault("cudaMalloc", 2, 1, SIMCUDA_RETURNS, cudaErrorUnknown); /* another rank's */
    float *values = new_values();
    float *more = NULL;
    assert_int_equal(cudaMalloc((void **)&more, 4), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc((void **)&more, 4), cudaSuccess);
    simcuda_thread_rank(-1);
    assert_int_equal(cudaFree(more), cudaSuccess);

    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    simcuda_fault("simcuda_launch", SIMCUDA_ANY_RANK, 1, SIMCUDA_FAILS_LATER, cudaErrorIllegalAddress);
    launch(stream, values, 1);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorIllegalAddress); /* and so for ever */
    simcuda_reset();
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_cannot_touch_device_memory), /* first: it forks */
        cmocka_unit_test(describes_devices_as_asked_for),
        cmocka_unit_test(tells_device_page_locked_and_ordinary_memory_apart),
        cmocka_unit_test(new_memory_holds_nans_and_so_does_poisoned_memory),
        cmocka_unit_test(refuses_and_reports_copies_of_the_wrong_kind_or_length),
        cmocka_unit_test(the_default_stream_waits_for_blocking_streams_only_and_is_counted),
        cmocka_unit_test(counts_what_was_called),
        cmocka_unit_test(a_destroyed_stream_runs_what_it_has),
        cmocka_unit_test(runs_host_functions_in_order),
        cmocka_unit_test(a_capturing_stream_says_so_and_runs_nothing),
        cmocka_unit_test(tells_the_time_between_events_that_have_one),
        cmocka_unit_test(fails_calls_as_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
