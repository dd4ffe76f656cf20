/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* ThreadSanitizer ends a program at its first report, so each case is a process: this program again, with arguments. */

#include "two_streams.h"

enum { TSAN_STATUS = 66 };

static void run_case(defect which, uint64_t first_seed, uint64_t seeds) {
    for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++) {
        simcuda_reset();
        simcuda_schedule(seed);
        two_streams how = {.defect = which, .slow_rank = -1};
        OK(ncclGetUniqueId(&how.id));
        run_rank_threads(2, two_streams_run, &how);
    }
}

/* Its exit status. The report itself would only clutter the output of a test that passes. */
static int run_process(defect which, uint64_t first_seed, uint64_t seeds) {
    char arguments[3][24];
    snprintf(arguments[0], sizeof arguments[0], "%d", (int)which);
    snprintf(arguments[1], sizeof arguments[1], "%llu", (unsigned long long)first_seed);
    snprintf(arguments[2], sizeof arguments[2], "%llu", (unsigned long long)seeds);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        setenv("TSAN_OPTIONS", "halt_on_error=1:exitcode=66:history_size=7:atexit_sleep_ms=0", 1);
        if (which != NO_DEFECT && freopen("/dev/null", "w", stderr) == NULL) {
            _exit(1);
        }
        execl("/proc/self/exe", "simcuda", arguments[0], arguments[1], arguments[2], (char *)NULL);
        _exit(1);
    }
    int status = 0;
    assert_int_equal(waitpid(process, &status, 0), process);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void is_silent_about_a_correct_overlap_whatever_the_schedule(void **state) {
    (void)state;
    assert_int_equal(run_process(NO_DEFECT, 0, 50), 0);
}

static void reports_each_defect_whatever_the_schedule(void **state) {
    (void)state;
    for (int which = NO_PRODUCER_WAIT; which < DEFECTS; which++) {
        for (uint64_t seed = 0; seed < 5; seed++) {
            const int status = run_process((defect)which, seed, 1);
            if (status != TSAN_STATUS) {
                fail_msg("seed %llu: defect %d ends with %d", (unsigned long long)seed, which, status);
            }
        }
    }
}

int main(int argument_count, char **arguments) {
    if (argument_count == 4) {
        run_case((defect)atoi(arguments[1]), strtoull(arguments[2], NULL, 10), strtoull(arguments[3], NULL, 10));
        return 0;
    }
    if (!HAS_TSAN) {
        puts("skipped: this build has no ThreadSanitizer");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_silent_about_a_correct_overlap_whatever_the_schedule),
        cmocka_unit_test(reports_each_defect_whatever_the_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
