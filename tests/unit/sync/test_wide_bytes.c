/* SPDX-License-Identifier: Apache-2.0 */
/* The memory for a host's sum is reserved once, before there is a plan: no plan may have a bucket that is larger. */

#include "base/dtype.h"
#include "seeded.h"
#include "sync/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

enum { GRADIENTS_MAX = 40, TRIALS = 3000, SEED = 20261130 };

static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

static size_t largest_bucket(const gs_bucket_plan *plan) {
    size_t largest = 0;
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_bucket *bucket = &plan->buckets[b];
        const size_t bytes = bucket->element_count * gsync_dtype_size(gs_dtype_wide(bucket->dtype));
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

static void try_model(seeded *random, gs_plan_rule rule) {
    gs_plan_gradient shapes[GRADIENTS_MAX];
    uint32_t order[GRADIENTS_MAX];
    const size_t count = 1 + seeded_below(random, GRADIENTS_MAX);
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t elements = seeded_below(random, seeded_below(random, 8) == 0 ? 3000 : 200);
        shapes[i] = (gs_plan_gradient){
            .count = elements, .dtype = dtypes[seeded_below(random, 4)], .uses = 1, .is_trainable = true};
        total += elements * gsync_dtype_size(gs_dtype_wide(shapes[i].dtype));
        const size_t other = seeded_below(random, i + 1);
        order[i] = order[other];
        order[other] = (uint32_t)i;
    }
    gs_bucket_plan plan;
    assert_int_equal(gs_bucket_plan_init(&plan, count), GSYNC_OK);
    gs_bucket_plan_build(&plan, shapes, order, &rule);
    const size_t reserved = gs_pipeline_wide_bytes(shapes, count, &rule);
    assert_in_range(largest_bucket(&plan), 0, reserved);
    assert_in_range(reserved, 0, total);
    gs_bucket_plan_clear(&plan);
}

static void no_bucket_is_larger_than_what_is_reserved(void **state) {
    (void)state;
    seeded random = {SEED};
    for (int trial = 0; trial < TRIALS; trial++) {
        const size_t cap = 1 + seeded_below(&random, 4000);
        const gs_plan_rule rule = {
            .strategy = (gsync_strategy)seeded_below(&random, 3),
            .bytes_max = trial % 10 == 0 ? SIZE_MAX : cap,
            .bytes_first_max = 1 + seeded_below(&random, cap),
        };
        try_model(&random, rule);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_bucket_is_larger_than_what_is_reserved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
