/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */
#include "two_streams.h"

#include <string.h>

static void run_on(int ranks, defect which, uint64_t seed) {
    simcuda_reset();
    simcuda_schedule(seed);
    two_streams how = {.defect = which, .slow_rank = -1};
    assert_int_equal(ncclGetUniqueId(&how.id), ncclSuccess);
    run_rank_threads(ranks, two_streams_run, &how);
}

static void run_with(defect which, uint64_t seed) {
    run_on(2, which, seed);
}

static void print_reports(void) {
    simcuda_report reports[8];
    const size_t count = simcuda_reports(reports, 8);
    for (size_t i = 0; i < count && i < 8; i++) {
        print_message("%s\n", reports[i].text);
    }
}

/* Asserts that there is a report of both, in this order. */
static void assert_reported(const char *first, const char *first_stream, const char *second,
                            const char *second_stream) {
    simcuda_report reports[8];
    const size_t count = simcuda_reports(reports, 8);
    for (size_t i = 0; i < count && i < 8; i++) {
        if (reports[i].kind == SIMCUDA_RACE && strcmp(reports[i].first, first) == 0 &&
            strcmp(reports[i].first_stream, first_stream) == 0 && strcmp(reports[i].second, second) == 0 &&
            strcmp(reports[i].second_stream, second_stream) == 0) {
            return;
        }
    }
    print_reports();
    fail_msg("no report of \"%s\" before \"%s\"", first, second);
}

static void is_silent(int ranks, uint64_t seeds) {
    const char *const text = getenv("GRADSYNC_TEST_SCHEDULES");
    const uint64_t end = text != NULL ? strtoull(text, NULL, 10) : seeds;
    for (uint64_t seed = 0; seed < end; seed++) {
        run_on(ranks, NO_DEFECT, seed);
        if (simcuda_reports(NULL, 0) > 0) {
            print_reports();
            fail_msg("%d ranks, seed %llu", ranks, (unsigned long long)seed);
        }
    }
}

static void is_silent_about_a_correct_overlap_whatever_the_schedule(void **state) {
    (void)state;
    is_silent(1, 100);
    is_silent(2, 100);
    is_silent(4, 30);
    is_silent(8, 10);
}

/* In which order the two come is the schedule's business, that they are reported is not. */
static int is_reported_either_way(const char *one, const char *other) {
    simcuda_report reports[8];
    const size_t count = simcuda_reports(reports, 8);
    for (size_t i = 0; i < count && i < 8; i++) {
        if ((strcmp(reports[i].first, one) == 0 && strcmp(reports[i].second, other) == 0) ||
            (strcmp(reports[i].first, other) == 0 && strcmp(reports[i].second, one) == 0)) {
            return 1;
        }
    }
    return 0;
}

static void names_both_sides_of_each_defect_whatever_the_schedule(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    static const char *const sides[DEFECTS][2] = {
        [NO_PRODUCER_WAIT] = {"backward", "ncclAllReduce"},
        [NO_CONSUMER_WAIT] = {"ncclAllReduce", "optimizer"},
        [NO_HOST_WAIT] = {"cudaMemcpyAsync", "the trainer's read of the loss"},
        [EARLY_REUSE] = {"ncclAllReduce", "backward"},
    };
    for (uint64_t seed = 0; seed < 20; seed++) {
        for (int which = NO_PRODUCER_WAIT; which < DEFECTS; which++) {
            run_with((defect)which, seed);
            if (!is_reported_either_way(sides[which][0], sides[which][1])) {
                print_reports();
                fail_msg("seed %llu: defect %d is not reported", (unsigned long long)seed, which);
            }
        }
    }
}

static cudaStream_t new_stream(const char *name) {
    cudaStream_t stream = NULL;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    simcuda_name(stream, name);
    return stream;
}

static void launch(cudaStream_t stream, const char *name, float *values, int is_write) {
    const fill_arguments arguments = {values, 1};
    const simcuda_access access = {values, ELEMENTS * sizeof(float), is_write};
    assert_int_equal(simcuda_launch(stream, fill, &arguments, sizeof arguments, name, &access, 1), cudaSuccess);
}

static void says_which_event_is_missing(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    simcuda_reset();
    cudaStream_t one = new_stream("one");
    cudaStream_t other = new_stream("other");
    float *values = NULL;
    assert_int_equal(cudaMalloc((void **)&values, ELEMENTS * sizeof(float)), cudaSuccess);
    launch(one, "writer", values, 1);
    simcuda_wait_idle();
    launch(other, "reader", values, 0);
    simcuda_wait_idle();

    assert_reported("writer", "one", "reader", "other");
    simcuda_report report;
    assert_int_equal(simcuda_reports(&report, 1), 1);
    assert_non_null(strstr(report.text, "an event has to be recorded on one after \"writer\""));
    assert_non_null(strstr(report.text, "other has to wait for it before \"reader\""));
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(one), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
}

static void takes_the_latest_record_at_the_time_of_the_wait(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    simcuda_reset();
    cudaStream_t one = new_stream("one");
    cudaStream_t other = new_stream("other");
    cudaEvent_t event = NULL;
    float *values = NULL;
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&values, ELEMENTS * sizeof(float)), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(other, event, 0), cudaSuccess); /* never recorded: waits for nothing */
    assert_int_equal(cudaEventRecord(event, one), cudaSuccess);
    launch(one, "writer", values, 1);
    assert_int_equal(cudaStreamWaitEvent(other, event, 0), cudaSuccess); /* the record before the writer */
    launch(other, "early reader", values, 0);
    assert_int_equal(cudaEventRecord(event, one), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
    launch(other, "late reader", values, 0);
    simcuda_wait_idle();

    assert_true(is_reported_either_way("writer", "early reader"));
    assert_false(is_reported_either_way("writer", "late reader"));
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(one), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
}

static void compares_bytes_not_allocations(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    simcuda_reset();
    cudaStream_t one = new_stream("one");
    cudaStream_t other = new_stream("other");
    float *values = NULL;
    assert_int_equal(cudaMalloc((void **)&values, 4 * ELEMENTS * sizeof(float)), cudaSuccess);
    launch(one, "first half", values, 1);
    launch(other, "second half", values + ELEMENTS, 1);
    launch(one, "first half again", values, 0);
    simcuda_wait_idle();
    assert_int_equal(simcuda_reports(NULL, 0), 0);

    launch(one, "one over the border", values + 1, 1);
    simcuda_wait_idle();
    assert_reported("second half", "other", "one over the border", "one");
    simcuda_report report;
    assert_int_equal(simcuda_reports(&report, 1), 1);
    assert_non_null(strstr(report.text, "race on 4 bytes"));
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(one), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
}

/* Its number in the clocks is one that others know of. */
static void sees_a_new_stream_where_another_was(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    simcuda_reset();
    cudaStream_t old = new_stream("old");
    cudaStream_t other = new_stream("other");
    cudaEvent_t event = NULL;
    float *values = NULL;
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&values, 2 * ELEMENTS * sizeof(float)), cudaSuccess);
    for (int i = 0; i < 2000; i++) {
        launch(old, "old writer", values, 1);
    }
    assert_int_equal(cudaEventRecord(event, old), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(old), cudaSuccess);
    simcuda_wait_idle();

    cudaStream_t streams[64];
    for (int i = 0; i < 64; i++) { /* all numbers that are free */
        streams[i] = new_stream("new");
        launch(streams[i], "new writer", values + ELEMENTS, 1);
        simcuda_wait_idle();
        launch(other, "reader", values + ELEMENTS, 0);
        simcuda_wait_idle();
        assert_true(is_reported_either_way("new writer", "reader"));
        simcuda_reset();
    }
    for (int i = 0; i < 64; i++) {
        assert_int_equal(cudaStreamDestroy(streams[i]), cudaSuccess);
    }
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
}

static void reports_a_kernel_that_touches_what_it_did_not_declare(void **state) {
    (void)state;
    simcuda_reset();
    cudaStream_t stream = new_stream("one");
    float *values = NULL;
    assert_int_equal(cudaMalloc((void **)&values, ELEMENTS * sizeof(float)), cudaSuccess);
    const fill_arguments arguments = {values, 1};
    assert_int_equal(simcuda_launch(stream, fill, &arguments, sizeof arguments, "secretive", NULL, 0), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);

    simcuda_report report;
    assert_int_equal(simcuda_reports(&report, 1), 1);
    assert_int_equal(report.kind, SIMCUDA_UNDECLARED);
    assert_string_equal(report.second, "secretive");
    assert_int_equal(cudaFree(values), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void reports_stream_ordered_frees_that_come_too_early(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    simcuda_reset();
    cudaStream_t one = new_stream("one");
    cudaStream_t other = new_stream("other");
    float *values = NULL;
    assert_int_equal(cudaMallocAsync((void **)&values, ELEMENTS * sizeof(float), one), cudaSuccess);
    launch(one, "writer", values, 1);
    simcuda_wait_idle();
    assert_int_equal(cudaFreeAsync(values, other), cudaSuccess);
    simcuda_wait_idle();
    assert_reported("writer", "one", "cudaFreeAsync", "other");
    assert_int_equal(cudaStreamDestroy(one), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
}

static void removes_every_wait_of_the_overlap_in_turn_and_sees_each(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    run_with(NO_DEFECT, 0);
    simcuda_site sites[32];
    const size_t count = simcuda_sites(sites, 32);
    assert_in_range(count, 4, 32); /* more than the four lines where the compiler unrolls loops */
    for (size_t i = 0; i < count; i++) {
        simcuda_reset();
        simcuda_drop_site(sites[i].module, sites[i].offset);
        two_streams how = {.defect = DEFECTS, .slow_rank = -1}; /* no defect, but no right values either */
        assert_int_equal(ncclGetUniqueId(&how.id), ncclSuccess);
        run_rank_threads(2, two_streams_run, &how);
        assert_true(sites[i].calls > 0);
        if (simcuda_reports(NULL, 0) == 0) {
            fail_msg("nothing misses %s at %s+0x%zx", sites[i].call, sites[i].module, (size_t)sites[i].offset);
        }
    }
}

static void removes_a_single_call_by_its_number(void **state) {
    (void)state;
    SKIP_UNDER_TSAN();
    run_with(NO_DEFECT, 0);
    const unsigned calls = (unsigned)(simcuda_calls("cudaEventRecord") + simcuda_calls("cudaStreamWaitEvent"));
    assert_int_equal(calls, 2 * STEPS * (2 * BUCKETS + 2));
    simcuda_reset();
    simcuda_drop(calls); /* the last wait of the last step of one rank */
    two_streams how = {.defect = DEFECTS, .slow_rank = -1};
    assert_int_equal(ncclGetUniqueId(&how.id), ncclSuccess);
    run_rank_threads(2, two_streams_run, &how);
    assert_true(is_reported_either_way("ncclAllReduce", "optimizer"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_silent_about_a_correct_overlap_whatever_the_schedule),
        cmocka_unit_test(names_both_sides_of_each_defect_whatever_the_schedule),
        cmocka_unit_test(says_which_event_is_missing),
        cmocka_unit_test(takes_the_latest_record_at_the_time_of_the_wait),
        cmocka_unit_test(compares_bytes_not_allocations),
        cmocka_unit_test(sees_a_new_stream_where_another_was),
        cmocka_unit_test(reports_a_kernel_that_touches_what_it_did_not_declare),
        cmocka_unit_test(reports_stream_ordered_frees_that_come_too_early),
        cmocka_unit_test(removes_every_wait_of_the_overlap_in_turn_and_sees_each),
        cmocka_unit_test(removes_a_single_call_by_its_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
