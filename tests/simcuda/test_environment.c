/* SPDX-License-Identifier: Apache-2.0 */

/* What the environment asks of programs that know nothing of the simulator: this program again, with an argument. */

#include "two_streams.h"

#include <string.h>

enum { REPORTED = 66 };

static void train(void) {
    two_streams how = {.defect = DEFECTS, .slow_rank = -1}; /* none, but values that are not looked at */
    OK(ncclGetUniqueId(&how.id));
    run_rank_threads(2, two_streams_run, &how);
}

/* The exit status of a training with `name` set to `value`. Its reports would only clutter the output. */
static int train_with(const char *name, const char *value) {
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        setenv("SIMCUDA_STRICT", "1", 1);
        setenv(name, value, 1);
        setenv("TSAN_OPTIONS", "report_bugs=0", 1);
        if (freopen("/dev/null", "w", stderr) == NULL) {
            _exit(1);
        }
        execl("/proc/self/exe", "simcuda", "train", (char *)NULL);
        _exit(1);
    }
    int status = 0;
    assert_int_equal(waitpid(process, &status, 0), process);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_correct_program_passes_with_every_seed(void **state) {
    (void)state;
    for (int seed = 0; seed < 5; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        assert_int_equal(train_with("SIMCUDA_SEED", text), 0);
    }
}

static void every_site_that_is_listed_can_be_dropped_and_is_missed(void **state) {
    (void)state;
    char path[] = "simcuda_sites_XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(train_with("SIMCUDA_SITES", path), 0);
    FILE *const sites = fdopen(file, "r");
    assert_non_null(sites);
    char line[512];
    int count = 0;
    while (fgets(line, sizeof line, sites) != NULL) {
        char call[64];
        char site[128];
        assert_int_equal(sscanf(line, "%63s %127s", call, site), 2);
        assert_true(strcmp(call, "cudaEventRecord") == 0 || strcmp(call, "cudaStreamWaitEvent") == 0);
        if (train_with("SIMCUDA_DROP_SITE", site) != REPORTED) {
            fail_msg("nobody misses %s", line);
        }
        count++;
    }
    assert_true(count >= 4);
    fclose(sites);
    unlink(path);
}

static void a_single_call_can_be_dropped(void **state) {
    (void)state;
    char last[16];
    snprintf(last, sizeof last, "%d", 2 * STEPS * (2 * BUCKETS + 2));
    assert_int_equal(train_with("SIMCUDA_DROP", last), REPORTED);
    assert_int_equal(train_with("SIMCUDA_DROP", "100000"), 0);
}

static void fewer_devices_are_fewer_devices(void **state) {
    (void)state;
    assert_int_not_equal(train_with("SIMCUDA_DEVICES", "1"), 0);
}

int main(int argument_count, char **arguments) {
    (void)arguments;
    if (argument_count > 1) {
        train();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_correct_program_passes_with_every_seed),
        cmocka_unit_test(every_site_that_is_listed_can_be_dropped_and_is_missed),
        cmocka_unit_test(a_single_call_can_be_dropped),
        cmocka_unit_test(fewer_devices_are_fewer_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
