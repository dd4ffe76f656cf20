/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: wrap=malloc,calloc,realloc,aligned_alloc,posix_memalign,free */
#include "plan/launch_order.h"

#include "alloc_fault.h"
#include "seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BUCKETS_MAX 50
#define SEEDS 2000

static gs_launch_order order;

static int set_up(void **state) {
    (void)state;
    return gs_launch_order_init(&order, BUCKETS_MAX) == GSYNC_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    gs_launch_order_clear(&order);
    return 0;
}

static void holds_a_full_bucket_back_until_those_before_it_are_full(void **state) {
    (void)state;
    gs_launch_order_reset(&order, 4);
    assert_int_equal(gs_launch_order_fill(&order, 2), 0);
    assert_int_equal(gs_launch_order_fill(&order, 1), 0);
    assert_int_equal(order.next, 0);
    assert_int_equal(gs_launch_order_fill(&order, 0), 3);
    assert_int_equal(order.next, 3);
    assert_int_equal(gs_launch_order_fill(&order, 3), 1);
    assert_int_equal(order.next, 4);
}

static void launches_buckets_in_plan_order_whatever_order_they_fill(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        seeded random = {seed};
        uint32_t filling[BUCKETS_MAX];
        bool is_full[BUCKETS_MAX + 1] = {false};
        const size_t count = seeded_below(&random, BUCKETS_MAX + 1);
        size_t launched = 0;
        seeded_permutation(&random, filling, count);
        gs_launch_order_reset(&order, count);
        for (size_t i = 0; i < count; i++) {
            const size_t first = order.next;
            const size_t going = gs_launch_order_fill(&order, filling[i]);
            is_full[filling[i]] = true;
            bool are_all_full = true;
            for (size_t b = first; b < first + going; b++) {
                are_all_full = are_all_full && is_full[b];
            }
            if (first != launched || !are_all_full || is_full[first + going]) {
                fail_msg("seed %llu: after %zu buckets, %zu go from %zu on", (unsigned long long)seed, i + 1, going,
                         first);
            }
            launched += going;
        }
        if (launched != count || order.next != count) {
            fail_msg("seed %llu: %zu of %zu buckets were launched", (unsigned long long)seed, launched, count);
        }
    }
}

static void does_not_launch_a_bucket_again_that_fills_twice(void **state) {
    (void)state;
    gs_launch_order_reset(&order, 3);
    assert_int_equal(gs_launch_order_fill(&order, 0), 1);
    assert_int_equal(gs_launch_order_fill(&order, 0), 0);
    assert_int_equal(gs_launch_order_fill(&order, 2), 0);
    assert_int_equal(gs_launch_order_fill(&order, 2), 0);
    assert_int_equal(gs_launch_order_fill(&order, 1), 2);
}

static void lets_everything_go_that_is_left_at_the_end_of_a_step(void **state) {
    (void)state;
    gs_launch_order_reset(&order, 5);
    gs_launch_order_fill(&order, 0);
    gs_launch_order_fill(&order, 3);
    assert_int_equal(gs_launch_order_fill_all(&order), 4);
    assert_int_equal(order.next, 5);
}

static void lets_nothing_go_after_everything_went(void **state) {
    (void)state;
    gs_launch_order_reset(&order, 3);
    gs_launch_order_fill_all(&order);
    assert_int_equal(gs_launch_order_fill(&order, 1), 0);
    assert_int_equal(gs_launch_order_fill_all(&order), 0);
    assert_int_equal(order.next, 3);
}

static void starts_over_after_a_reset(void **state) {
    (void)state;
    gs_launch_order_reset(&order, 3);
    gs_launch_order_fill_all(&order);
    gs_launch_order_reset(&order, 2);
    assert_int_equal(order.next, 0);
    assert_int_equal(gs_launch_order_fill(&order, 1), 0);
    assert_int_equal(gs_launch_order_fill(&order, 0), 2);
}

static void launches_nothing_of_a_plan_without_buckets(void **state) {
    (void)state;
    gs_launch_order_reset(&order, 0);
    assert_int_equal(gs_launch_order_fill_all(&order), 0);
}

static void has_no_buckets_before_the_first_reset(void **state) {
    (void)state;
    gs_launch_order fresh;
    assert_int_equal(gs_launch_order_init(&fresh, 0), GSYNC_OK);
    assert_int_equal(gs_launch_order_fill_all(&fresh), 0);
    gs_launch_order_clear(&fresh);
    gs_launch_order_clear(&fresh);
}

static void clears_itself_when_its_allocation_fails(void **state) {
    (void)state;
    const gs_launch_order cleared = {0};
    gs_launch_order failed;
    const long before = alloc_fault_live();
    alloc_fault_fail_nth(1);
    const gsync_status status = gs_launch_order_init(&failed, 10);
    alloc_fault_fail_nth(0);
    assert_int_equal(status, GSYNC_ERR_MEMORY);
    assert_non_null(strstr(gsync_last_error(), "the launch order"));
    assert_int_equal(alloc_fault_live(), before);
    assert_memory_equal(&failed, &cleared, sizeof failed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_a_full_bucket_back_until_those_before_it_are_full),
        cmocka_unit_test(launches_buckets_in_plan_order_whatever_order_they_fill),
        cmocka_unit_test(does_not_launch_a_bucket_again_that_fills_twice),
        cmocka_unit_test(lets_everything_go_that_is_left_at_the_end_of_a_step),
        cmocka_unit_test(lets_nothing_go_after_everything_went),
        cmocka_unit_test(starts_over_after_a_reset),
        cmocka_unit_test(launches_nothing_of_a_plan_without_buckets),
        cmocka_unit_test(has_no_buckets_before_the_first_reset),
        cmocka_unit_test(clears_itself_when_its_allocation_fails),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
