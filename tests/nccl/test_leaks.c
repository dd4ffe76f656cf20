/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=180 */
#include "nccl_ranks.h"

#include <dirent.h>

/* GS-78, GS-79: nothing grows with communicators that are made and destroyed, failed ones too, nor with steps. */

enum { CYCLES = 200, WARM_CYCLES = 20, STEPS = 5000, STEPS_LONG = 50000 };
/* ThreadSanitizer has a thread of its own as soon as the program has made one. */
enum { THREADS_ALONE = HAS_TSAN ? 2 : 1 };

typedef struct usage {
    long threads;
    long files;
    uint64_t objects;
    uint64_t allocations;
} usage;

static long count_entries(const char *path) {
    long count = 0;
    DIR *directory = opendir(path);
    for (const struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}

static usage usage_now(void) {
    return (usage){.threads = count_entries("/proc/self/task"),
                   .files = count_entries("/proc/self/fd"),
                   .objects = simcuda_objects(),
                   .allocations = simcuda_allocations()};
}

/* Threads that have ended, joined ones too, may still be listed for a while, and streams end theirs in the background.
 * One that never ends makes this wait until the test's timeout. */
static usage usage_when_alone(void) {
    while (count_entries("/proc/self/task") > THREADS_ALONE) {
        simcuda_wait_idle();
        sched_yield();
    }
    return usage_now();
}

static void expect_only_files(const usage *now, long files) {
    assert_int_equal(now->threads, THREADS_ALONE);
    assert_int_equal(now->files, files);
    assert_int_equal(now->objects, 0);
    assert_int_equal(now->allocations, 0);
}

static void step_once(nccl_rank *self) {
    gsync_reducer *reducer = NULL;
    float grad[16] = {(float)self->rank};
    CHECK_STATUS(gsync_reducer_create(&reducer, self->comm, NULL), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_add(reducer, "grad", grad, 16, GSYNC_FLOAT32), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_OK);
    CHECK_STATUS(gsync_begin(reducer, GSYNC_SYNC), GSYNC_OK);
    CHECK_STATUS(gsync_finish(reducer, NULL), GSYNC_OK);
    CHECK(grad[0] == 0.5F);
    gsync_reducer_destroy(&reducer);
}

static void repeat_cycles(nccl_rank_function *cycle, int cycles) {
    usage warm = {0};
    simcuda_reset();
    for (int i = 0; i < cycles; i++) {
        run_nccl_ranks(2, NULL, cycle);
        if (i + 1 == WARM_CYCLES) {
            warm = usage_when_alone();
        }
    }
    const usage now = usage_when_alone();
    expect_only_files(&now, warm.files);
}

static void GS_78_cycles_of_communicators_leave_nothing(void **state) {
    (void)state;
    repeat_cycles(step_once, CYCLES);
}

static void fail_to_begin(nccl_rank *self) {
    CHECK_STATUS(gsync_comm_from_nccl(&self->comm, self->trainers, NULL), GSYNC_ERR_TRANSPORT);
}

static void GS_78_cycles_that_fail_leave_nothing_either(void **state) {
    (void)state;
    usage warm = {0};
    for (int i = 0; i < CYCLES; i++) {
        simcuda_reset();
        simcuda_fault("ncclCommSplit", 0, 1, SIMCUDA_RETURNS, ncclSystemError);
        simcuda_fault("ncclCommSplit", 1, 1, SIMCUDA_RETURNS, ncclSystemError);
        run_bare_ranks(2, fail_to_begin);
        if (i + 1 == WARM_CYCLES) {
            warm = usage_when_alone();
        }
    }
    const usage now = usage_when_alone();
    expect_only_files(&now, warm.files);
}

static void take_many_steps(nccl_rank *self) {
    usage before = {0};
    const int steps = getenv("GRADSYNC_TEST_SOAK") != NULL ? STEPS_LONG : STEPS;
    for (int i = 0; i < steps; i++) {
        CHECK_STATUS(gsync_barrier(self->comm), GSYNC_OK);
        if (i == 100 && self->rank == 0) {
            before = usage_now();
        }
    }
    if (self->rank == 0) {
        const usage after = usage_now();
        /* The thread that split the ncclComm_t was joined, but may still have been listed. */
        CHECK(after.threads <= before.threads && before.files == after.files);
        CHECK(before.objects == after.objects && before.allocations == after.allocations);
    }
    /* Nobody makes or ends anything before the other has counted. */
    CHECK_STATUS(gsync_barrier(self->comm), GSYNC_OK);
}

static void GS_79_many_steps_leave_nothing(void **state) {
    (void)state;
    simcuda_reset();
    run_nccl_ranks(2, NULL, take_many_steps);
    expect_nothing_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(GS_78_cycles_of_communicators_leave_nothing),
        cmocka_unit_test(GS_78_cycles_that_fail_leave_nothing_either),
        cmocka_unit_test(GS_79_many_steps_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
