/* SPDX-License-Identifier: Apache-2.0 */
/* Who is asleep on the rank's bell must hear of a bucket that was launched, even if it waits for other buckets. */

#include "collective/collective_threads.h"
#include "sync/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

static gs_group *make_group(void) {
    gs_group *group = NULL;
    const gs_logger logger = {.log = NULL};
    assert_int_equal(gs_threads_create(&group, 1, 1000, &logger), GSYNC_OK);
    return group;
}

/* A caller inside gsync_finish of one reducer, while another thread marks gradients of another. */
static void rings_for_a_caller_that_attends(void **state) {
    (void)state;
    gs_engine engine;
    gs_group *group = make_group();
    gs_engine_init(&engine, group, true);
    atomic_store(&engine.attending, 1);
    gs_bell *bell = gs_group_bell(group);
    atomic_store(&bell->sleepers, 1);
    gs_engine_kick(&engine);
    assert_int_equal(atomic_load(&bell->count), 1);
    atomic_store(&bell->sleepers, 0);
    atomic_store(&engine.attending, 0);
    gs_engine_clear(&engine);
    gs_group_destroy(group);
}

/* The helper, asleep because the bucket of one reducer waits for other ranks. */
static void rings_for_a_helper_that_waits_for_peers(void **state) {
    (void)state;
    gs_engine engine;
    gs_group *group = make_group();
    gs_engine_init(&engine, group, true);
    gs_bell *bell = gs_group_bell(group);
    atomic_store(&bell->sleepers, 1);
    gs_engine_kick(&engine);
    assert_int_equal(atomic_load(&bell->count), 1);
    atomic_store(&bell->sleepers, 0);
    gs_engine_clear(&engine);
    gs_group_destroy(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_for_a_caller_that_attends),
        cmocka_unit_test(rings_for_a_helper_that_waits_for_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
