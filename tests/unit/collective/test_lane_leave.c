/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 memory=no */

/* A rank may leave as soon as an operation has ended for it. Those who are just about to see that must not take it for
 * one that left in the middle. */

#include "collective/collective_threads.h"
#include "collective/lane.h"
#include "sanitized.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

enum { RANKS = 4, ROUNDS = SANITIZED ? 400 : 4000, SUMS = 10, COUNT = 64 };

static const gs_logger silent = {.log = NULL};

typedef struct leaver {
    gs_group *group;
    float data[COUNT];
    gsync_status status;
} leaver;

static void *sum_and_leave(void *argument) {
    leaver *self = argument;
    const gs_lane_operation operation = {
        .kind = GS_LANE_REDUCE,
        .topic = {.what = "sum"},
        .contributes = true,
        .data = self->data,
        .count = COUNT,
        .dtype = GSYNC_FLOAT32,
        .op = GSYNC_SUM,
    };
    /* Several, so that the ranks are close together at the end. */
    for (int i = 0; i < SUMS && self->status == GSYNC_OK; i++) {
        self->status = gs_lane_run(self->group->control, &operation, NULL, NULL);
    }
    gs_group_destroy(self->group);
    return NULL;
}

static void who_leaves_after_an_operation_fails_nobody(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        gs_group *groups[RANKS];
        leaver leavers[RANKS] = {{.group = NULL}};
        pthread_t threads[RANKS];
        assert_int_equal(gs_threads_create(groups, RANKS, 10000, &silent), GSYNC_OK);
        for (int rank = 0; rank < RANKS; rank++) {
            leavers[rank].group = groups[rank];
        }
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal(pthread_create(&threads[rank], NULL, sum_and_leave, &leavers[rank]), 0);
        }
        for (int rank = 0; rank < RANKS; rank++) {
            pthread_join(threads[rank], NULL);
            if (leavers[rank].status != GSYNC_OK) {
                fail_msg("round %d: rank %d got status %d", round, rank, (int)leavers[rank].status);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_leaves_after_an_operation_fails_nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
