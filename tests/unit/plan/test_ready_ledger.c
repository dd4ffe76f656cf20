/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: wrap=malloc,calloc,realloc,aligned_alloc,posix_memalign,free */
#include "plan/ready_ledger.h"

#include "alloc_fault.h"
#include "plan_notation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static plan_model model;
static gs_bucket_plan plan;
static gs_ready_ledger ledger;

/* Two gradients to a bucket, [0 1][2 3][4]; 5 is frozen and 6 empty. 3 is a weight that is used three times. */
static int set_up(void **state) {
    (void)state;
    model = plan_model_read("1f 1f 1f 1f 1f 1f! 0f");
    model.gradients[3].uses = 3;
    const gs_plan_rule rule = plan_rule_fixed(8);
    if (gs_bucket_plan_init(&plan, model.count) != GSYNC_OK || gs_ready_ledger_init(&ledger, model.count) != GSYNC_OK) {
        return -1;
    }
    gs_bucket_plan_build(&plan, model.gradients, model.order, &rule);
    gs_ready_ledger_reset(&ledger, &plan, true);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    gs_ready_ledger_clear(&ledger);
    gs_bucket_plan_clear(&plan);
    return 0;
}

static gs_mark mark(uint32_t gradient_index) {
    return gs_ready_ledger_mark(&ledger, &plan, model.gradients, gradient_index);
}

static bool is_ready(uint32_t gradient_index) {
    return gs_ready_ledger_is_ready(&ledger, &plan, model.gradients, gradient_index);
}

static void reports_a_full_bucket_with_its_last_gradient(void **state) {
    (void)state;
    assert_int_equal(mark(1), GS_MARK_COUNTED);
    assert_int_equal(mark(4), GS_MARK_BUCKET_FULL);
    assert_int_equal(mark(0), GS_MARK_BUCKET_FULL);
}

static void waits_for_every_use_of_a_shared_weight(void **state) {
    (void)state;
    assert_int_equal(mark(3), GS_MARK_MORE_USES);
    assert_int_equal(mark(2), GS_MARK_COUNTED);
    assert_int_equal(mark(3), GS_MARK_MORE_USES);
    assert_false(is_ready(3));
    assert_int_equal(mark(3), GS_MARK_BUCKET_FULL);
    assert_true(is_ready(3));
}

static void refuses_marks_beyond_the_declared_uses(void **state) {
    (void)state;
    assert_int_equal(mark(0), GS_MARK_COUNTED);
    assert_int_equal(mark(0), GS_MARK_TOO_OFTEN);
    mark(3);
    mark(3);
    mark(3);
    assert_int_equal(mark(3), GS_MARK_TOO_OFTEN);
}

static void counts_nothing_for_a_mark_that_is_one_too_many(void **state) {
    (void)state;
    mark(0);
    mark(0);
    assert_true(is_ready(0));
    assert_int_equal(atomic_load(&ledger.order_count), 1);
    assert_int_equal(mark(1), GS_MARK_BUCKET_FULL);
}

static void says_which_gradients_are_ready(void **state) {
    (void)state;
    mark(1);
    assert_false(is_ready(0));
    assert_true(is_ready(1));
}

static void takes_gradients_that_are_in_no_bucket_as_ready(void **state) {
    (void)state;
    assert_true(is_ready(5));
    assert_true(is_ready(6));
}

static void ignores_marks_of_gradients_that_are_in_no_bucket(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mark(5), GS_MARK_COUNTED);
        assert_int_equal(mark(6), GS_MARK_COUNTED);
    }
    assert_int_equal(atomic_load(&ledger.order_count), 0);
}

static void records_the_order_in_which_gradients_became_ready(void **state) {
    (void)state;
    const uint32_t marks[] = {3, 2, 3, 4, 3, 0, 5, 1};
    const uint32_t expected[] = {2, 4, 3, 0, 1};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        mark(marks[i]);
    }
    assert_int_equal(atomic_load(&ledger.order_count), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(atomic_load(&ledger.order[i]), expected[i]);
    }
}

static void starts_over_with_every_micro_batch(void **state) {
    (void)state;
    mark(0);
    mark(1);
    mark(3);
    gs_ready_ledger_reset(&ledger, &plan, false);
    assert_false(is_ready(0));
    assert_int_equal(atomic_load(&ledger.order_count), 0);
    assert_int_equal(mark(0), GS_MARK_COUNTED);
    assert_int_equal(mark(1), GS_MARK_BUCKET_FULL);
    assert_int_equal(mark(3), GS_MARK_MORE_USES);
    assert_int_equal(mark(3), GS_MARK_MORE_USES);
}

static void remembers_what_was_used_until_the_window_ends(void **state) {
    (void)state;
    mark(0);
    mark(3);
    gs_ready_ledger_reset(&ledger, &plan, false);
    mark(4);
    assert_true(atomic_load(&ledger.is_used[0]));
    assert_false(atomic_load(&ledger.is_used[1]));
    assert_true(atomic_load(&ledger.is_used[3]));
    assert_true(atomic_load(&ledger.is_used[4]));
    gs_ready_ledger_reset(&ledger, &plan, true);
    for (size_t i = 0; i < model.count; i++) {
        assert_false(atomic_load(&ledger.is_used[i]));
    }
}

static void follows_the_plan_that_it_was_reset_with(void **state) {
    (void)state;
    const gs_plan_rule rule = plan_rule_single();
    model.gradients[1].is_trainable = false;
    gs_bucket_plan_build(&plan, model.gradients, model.order, &rule);
    model.gradients[3].uses = 1;
    gs_ready_ledger_reset(&ledger, &plan, true);
    assert_int_equal(mark(0), GS_MARK_COUNTED);
    assert_int_equal(mark(1), GS_MARK_COUNTED);
    assert_int_equal(mark(2), GS_MARK_COUNTED);
    assert_int_equal(mark(3), GS_MARK_COUNTED);
    assert_int_equal(mark(4), GS_MARK_BUCKET_FULL);
}

static void keeps_a_ledger_of_no_gradients(void **state) {
    (void)state;
    gs_bucket_plan empty_plan;
    gs_ready_ledger empty;
    assert_int_equal(gs_bucket_plan_init(&empty_plan, 0), GSYNC_OK);
    assert_int_equal(gs_ready_ledger_init(&empty, 0), GSYNC_OK);
    gs_ready_ledger_reset(&empty, &empty_plan, true);
    assert_int_equal(atomic_load(&empty.order_count), 0);
    gs_ready_ledger_clear(&empty);
    gs_ready_ledger_clear(&empty);
    gs_bucket_plan_clear(&empty_plan);
}

static void clears_itself_when_any_allocation_fails(void **state) {
    (void)state;
    for (size_t nth = 1;; nth++) {
        gs_ready_ledger failed;
        const long before = alloc_fault_live();
        alloc_fault_fail_nth(nth);
        const gsync_status status = gs_ready_ledger_init(&failed, 10);
        const bool is_past_the_last = alloc_fault_count() < nth;
        alloc_fault_fail_nth(0);
        if (is_past_the_last) {
            assert_int_equal(status, GSYNC_OK);
            assert_int_equal(nth, 5);
            gs_ready_ledger_clear(&failed);
            return;
        }
        assert_int_equal(status, GSYNC_ERR_MEMORY);
        assert_non_null(strstr(gsync_last_error(), "the ready ledger"));
        assert_int_equal(alloc_fault_live(), before);
        assert_null(failed.marks);
        assert_int_equal(failed.gradient_count, 0);
    }
}

static void refuses_more_gradients_than_an_index_can_name(void **state) {
    (void)state;
    gs_ready_ledger refused;
    assert_int_equal(gs_ready_ledger_init(&refused, UINT32_MAX), GSYNC_ERR_ARGUMENT);
    gs_ready_ledger_clear(&refused);
}

#define WITH_LEDGER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_LEDGER(reports_a_full_bucket_with_its_last_gradient),
        WITH_LEDGER(waits_for_every_use_of_a_shared_weight),
        WITH_LEDGER(refuses_marks_beyond_the_declared_uses),
        WITH_LEDGER(counts_nothing_for_a_mark_that_is_one_too_many),
        WITH_LEDGER(says_which_gradients_are_ready),
        WITH_LEDGER(takes_gradients_that_are_in_no_bucket_as_ready),
        WITH_LEDGER(ignores_marks_of_gradients_that_are_in_no_bucket),
        WITH_LEDGER(records_the_order_in_which_gradients_became_ready),
        WITH_LEDGER(starts_over_with_every_micro_batch),
        WITH_LEDGER(remembers_what_was_used_until_the_window_ends),
        WITH_LEDGER(follows_the_plan_that_it_was_reset_with),
        cmocka_unit_test(keeps_a_ledger_of_no_gradients),
        cmocka_unit_test(clears_itself_when_any_allocation_fails),
        cmocka_unit_test(refuses_more_gradients_than_an_index_can_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
