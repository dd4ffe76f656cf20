/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of operations wrap around. A rank that has not finished one must not seem to, after very many others. */

#include "collective/collective_threads.h"
#include "collective/lane_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

enum { RANKS = 2, COUNT = 256 };

static const gs_logger silent = {.log = NULL};

static void progress(gs_lane *lane, bool *is_done) {
    bool did_work;
    assert_int_equal(gs_lane_progress(lane, is_done, &did_work), GSYNC_OK);
}

static void post_sum(gs_lane *lane, float *data) {
    const gs_lane_operation operation = {
        .kind = GS_LANE_REDUCE,
        .topic = {.what = "sum"},
        .contributes = true,
        .data = data,
        .count = COUNT,
        .dtype = GSYNC_FLOAT32,
        .op = GSYNC_SUM,
    };
    assert_int_equal(gs_lane_post(lane, &operation), GSYNC_OK);
}

/* As if so many barriers had been made. */
static void make_barriers(gs_lane *lane, uint32_t count) {
    lane->sequence += count;
    atomic_store(&lane->shared->flags[lane->group->local_rank].arrived, lane->sequence);
}

static void sum_once(gs_group **groups) {
    float data[RANKS][COUNT];
    bool is_done[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < COUNT; i++) {
            data[rank][i] = (float)(rank + 1);
        }
        post_sum(groups[rank]->control, data[rank]);
    }
    progress(groups[0]->control, &is_done[0]);
    assert_false(is_done[0]); /* the other rank's half is still to come */
    progress(groups[1]->control, &is_done[1]);
    assert_true(is_done[1]);
    progress(groups[0]->control, &is_done[0]);
    assert_true(is_done[0]);
    for (int i = 0; i < COUNT; i++) {
        assert_true(data[0][i] == 3.0f && data[1][i] == 3.0f);
    }
}

static void a_sum_waits_for_all_however_many_barriers_lie_before_it(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 1000, INT32_MAX, (uint32_t)INT32_MAX + 1, UINT32_MAX - 1};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        gs_group *groups[RANKS];
        assert_int_equal(gs_threads_create(groups, RANKS, 10000, &silent), GSYNC_OK);
        sum_once(groups);
        for (int rank = 0; rank < RANKS; rank++) {
            make_barriers(groups[rank]->control, counts[c]);
        }
        sum_once(groups);
        sum_once(groups);
        for (int rank = 0; rank < RANKS; rank++) {
            gs_group_destroy(groups[rank]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_waits_for_all_however_many_barriers_lie_before_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
