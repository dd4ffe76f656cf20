/* SPDX-License-Identifier: Apache-2.0 */
/* Putting the buckets of a plan in another order, and completing an order that was only partly observed. */
#include "plan_notation.h"

#include "seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SEEDS 2000

static void build(gs_bucket_plan *plan, const plan_model *model, gs_plan_rule rule) {
    assert_int_equal(gs_bucket_plan_init(plan, model->count), GSYNC_OK);
    gs_bucket_plan_build(plan, model->gradients, model->order, &rule);
}

static void expect_reordered(const char *notation, gs_plan_rule rule, const uint32_t *order, const char *expected) {
    const plan_model model = plan_model_read(notation);
    gs_bucket_plan plan;
    char text[PLAN_TEXT_MAX];
    build(&plan, &model, rule);
    gs_bucket_plan_reorder(&plan, order);
    plan_write(&plan, text);
    gs_bucket_plan_clear(&plan);
    assert_string_equal(text, expected);
}

static void reorders_buckets_by_their_last_gradient(void **state) {
    (void)state;
    const gs_plan_rule rule = plan_rule_fixed(8); /* [0 1][2 3][4 5] */
    expect_reordered("1f 1f 1f 1f 1f 1f", rule, (const uint32_t[]){5, 4, 3, 2, 1, 0}, "[4 5][2 3][0 1]");
    expect_reordered("1f 1f 1f 1f 1f 1f", rule, (const uint32_t[]){0, 2, 4, 1, 5, 3}, "[0 1][4 5][2 3]");
    expect_reordered("1f 1f 1f 1f 1f 1f", rule, (const uint32_t[]){4, 2, 0, 3, 1, 5}, "[2 3][0 1][4 5]");
}

static void ignores_frozen_and_empty_gradients_when_it_reorders(void **state) {
    (void)state;
    const gs_plan_rule rule = plan_rule_fixed(8); /* [0 2][4 5] */
    expect_reordered("1f 1f! 1f 0f 1f 1f", rule, (const uint32_t[]){4, 5, 2, 0, 1, 3}, "[4 5][0 2]");
}

static void changes_nothing_when_the_order_is_the_planned_one(void **state) {
    (void)state;
    const plan_model model = plan_model_read("9f 3d 9f! 4f 8d 1h");
    gs_bucket_plan plan;
    build(&plan, &model, plan_rule_ddp(12, 40));
    const uint64_t digest = plan.digest;
    gs_bucket_plan_reorder(&plan, model.order);
    const uint64_t digest_after = plan.digest;
    gs_bucket_plan_clear(&plan);
    assert_true(digest == digest_after);
}

static void changes_the_digest_when_buckets_change_places(void **state) {
    (void)state;
    const plan_model model = plan_model_read("1f 1f");
    gs_bucket_plan plan;
    build(&plan, &model, plan_rule_fixed(4));
    const uint64_t digest = plan.digest;
    gs_bucket_plan_reorder(&plan, (const uint32_t[]){1, 0});
    const uint64_t digest_swapped = plan.digest;
    gs_bucket_plan_reorder(&plan, (const uint32_t[]){0, 1});
    const uint64_t digest_back = plan.digest;
    gs_bucket_plan_clear(&plan);
    assert_true(digest != digest_swapped);
    assert_true(digest == digest_back);
}

static void reorders_a_plan_without_buckets(void **state) {
    (void)state;
    const uint32_t none[] = {0};
    expect_reordered("", plan_rule_single(), none, "");
    expect_reordered("5f!", plan_rule_single(), none, "");
}

static size_t last_position(const gs_bucket_plan *plan, size_t bucket_index, const uint32_t *order) {
    size_t last = 0;
    for (size_t position = 0; position < plan->gradient_count; position++) {
        if (plan->bucket_of[order[position]] == bucket_index) {
            last = position;
        }
    }
    return last;
}

/* before and after plan the same gradients. Returns which claim is broken, or NULL. */
static const char *check_reordered(const gs_bucket_plan *before, const gs_bucket_plan *after, const uint32_t *order) {
    if (before->bucket_count != after->bucket_count) {
        return "the number of buckets changed";
    }
    for (size_t i = 0; i < before->gradient_count; i++) {
        if (before->element_offset[i] != after->element_offset[i]) {
            return "a gradient moved inside its bucket";
        }
        for (size_t j = 0; j < i; j++) {
            const bool were_together = before->bucket_of[i] == before->bucket_of[j];
            if (were_together != (after->bucket_of[i] == after->bucket_of[j])) {
                return "gradients joined or parted";
            }
        }
    }
    size_t first = 0;
    for (size_t b = 0; b < after->bucket_count; b++) {
        const gs_bucket *const bucket = &after->buckets[b];
        const gs_bucket *const old = &before->buckets[before->bucket_of[after->members[bucket->first]]];
        if (bucket->first != first || bucket->gradient_count != old->gradient_count ||
            bucket->element_count != old->element_count || bucket->dtype != old->dtype) {
            return "a bucket does not have what it had";
        }
        first += bucket->gradient_count;
        if (memcmp(after->members + bucket->first, before->members + old->first,
                   bucket->gradient_count * sizeof *after->members) != 0) {
            return "members changed";
        }
        if (b > 0 && last_position(after, b, order) < last_position(after, b - 1, order)) {
            return "a bucket leaves before one that is full earlier";
        }
    }
    return NULL;
}

static void random_model(plan_model *model, seeded *random) {
    model->count = seeded_below(random, 40);
    for (size_t i = 0; i < model->count; i++) {
        const gsync_dtype dtype = seeded_below(random, 2) == 0 ? GSYNC_FLOAT32 : GSYNC_FLOAT64;
        const size_t count = seeded_below(random, 20);
        const bool is_trainable = seeded_below(random, 8) > 0;
        model->gradients[i] = (gs_plan_gradient){.count = count,
                                                 .dtype = dtype,
                                                 .uses = 1,
                                                 .is_trainable = is_trainable,
                                                 .wire = (uint32_t)seeded_below(random, 3)};
    }
    seeded_permutation(random, model->order, model->count);
}

static void keeps_what_each_bucket_holds_when_it_reorders(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        seeded random = {seed};
        plan_model model;
        random_model(&model, &random);
        const gs_plan_rule rule = plan_rule_ddp(1 + seeded_below(&random, 100), 1 + seeded_below(&random, 300));
        gs_bucket_plan before;
        gs_bucket_plan after;
        uint32_t order[PLAN_MODEL_MAX];
        build(&before, &model, rule);
        build(&after, &model, rule);
        seeded_permutation(&random, order, model.count);
        gs_bucket_plan_reorder(&after, order);
        const char *const broken = check_reordered(&before, &after, order);
        gs_bucket_plan_clear(&after);
        gs_bucket_plan_clear(&before);
        if (broken != NULL) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, broken);
        }
    }
}

static bool complete(size_t gradient_count, const uint32_t *observed, size_t observed_count, uint32_t *order) {
    gs_bucket_plan plan;
    assert_int_equal(gs_bucket_plan_init(&plan, gradient_count), GSYNC_OK);
    const bool is_complete = gs_bucket_plan_complete_order(&plan, observed, observed_count, order);
    gs_bucket_plan_clear(&plan);
    return is_complete;
}

static void appends_what_was_never_seen_in_reverse_registration(void **state) {
    (void)state;
    const uint32_t expected[] = {3, 1, 5, 4, 2, 0};
    uint32_t order[6];
    assert_true(complete(6, (const uint32_t[]){3, 1}, 2, order));
    assert_memory_equal(order, expected, sizeof order);
}

static void makes_reverse_registration_of_nothing_seen(void **state) {
    (void)state;
    const uint32_t expected[] = {3, 2, 1, 0};
    uint32_t order[4];
    assert_true(complete(4, NULL, 0, order));
    assert_memory_equal(order, expected, sizeof order);
    assert_true(complete(0, NULL, 0, order));
    assert_memory_equal(order, expected, sizeof order);
}

static void keeps_an_order_that_is_complete_already(void **state) {
    (void)state;
    const uint32_t observed[] = {2, 0, 1};
    uint32_t order[3];
    assert_true(complete(3, observed, 3, order));
    assert_memory_equal(order, observed, sizeof order);
}

static void completes_an_order_in_place(void **state) {
    (void)state;
    const uint32_t expected[] = {1, 3, 2, 0};
    uint32_t order[] = {1, 77, 77, 77};
    assert_true(complete(4, order, 1, order));
    assert_memory_equal(order, expected, sizeof order);
}

static void refuses_an_order_that_names_a_gradient_twice(void **state) {
    (void)state;
    const uint32_t untouched[] = {7, 7, 7};
    uint32_t order[] = {7, 7, 7};
    assert_false(complete(3, (const uint32_t[]){1, 1}, 2, order));
    assert_false(complete(3, (const uint32_t[]){2, 0, 1, 2}, 4, order));
    assert_memory_equal(order, untouched, sizeof order);
}

static void refuses_an_order_that_names_a_gradient_which_is_not_there(void **state) {
    (void)state;
    const uint32_t untouched[] = {7, 7, 7};
    uint32_t order[] = {7, 7, 7};
    assert_false(complete(3, (const uint32_t[]){0, 3}, 2, order));
    assert_false(complete(3, (const uint32_t[]){UINT32_MAX}, 1, order));
    assert_false(complete(0, (const uint32_t[]){0}, 1, order));
    assert_memory_equal(order, untouched, sizeof order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reorders_buckets_by_their_last_gradient),
        cmocka_unit_test(ignores_frozen_and_empty_gradients_when_it_reorders),
        cmocka_unit_test(changes_nothing_when_the_order_is_the_planned_one),
        cmocka_unit_test(changes_the_digest_when_buckets_change_places),
        cmocka_unit_test(reorders_a_plan_without_buckets),
        cmocka_unit_test(keeps_what_each_bucket_holds_when_it_reorders),
        cmocka_unit_test(appends_what_was_never_seen_in_reverse_registration),
        cmocka_unit_test(makes_reverse_registration_of_nothing_seen),
        cmocka_unit_test(keeps_an_order_that_is_complete_already),
        cmocka_unit_test(completes_an_order_in_place),
        cmocka_unit_test(refuses_an_order_that_names_a_gradient_twice),
        cmocka_unit_test(refuses_an_order_that_names_a_gradient_which_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
