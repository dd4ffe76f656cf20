/* SPDX-License-Identifier: Apache-2.0 */
#include "seeded.h"
#include "wire/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define SEED 20261130

/* ---- A sorting oracle ----------------------------------------------------------------------------------------------
 */

typedef struct entry {
    double magnitude; /* of NaN: more than infinity, which sorting shows as a flag */
    int is_nan;
    uint32_t index;
} entry;

static int by_magnitude(const void *a, const void *b) {
    const entry *const left = a;
    const entry *const right = b;
    if (left->is_nan != right->is_nan) {
        return right->is_nan - left->is_nan;
    }
    if (!left->is_nan && left->magnitude != right->magnitude) {
        return left->magnitude > right->magnitude ? -1 : 1;
    }
    return left->index < right->index ? -1 : 1;
}

static int by_index(const void *a, const void *b) {
    const uint32_t left = *(const uint32_t *)a;
    const uint32_t right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static void expect_selection(const float *x, size_t count, size_t k) {
    entry *const entries = calloc(count + 1, sizeof *entries);
    uint32_t *const expected = calloc(k + 1, sizeof *expected);
    uint32_t *const got = malloc((k + 1) * sizeof *got);
    void *const scratch = malloc(gs_topk_scratch_bytes(count));
    assert_true(entries != NULL && expected != NULL && got != NULL && scratch != NULL);
    for (size_t i = 0; i < count; i++) {
        entries[i] = (entry){fabs((double)x[i]), isnan(x[i]) ? 1 : 0, (uint32_t)i};
    }
    qsort(entries, count, sizeof *entries, by_magnitude);
    for (size_t i = 0; i < k; i++) {
        expected[i] = entries[i].index;
    }
    qsort(expected, k, sizeof *expected, by_index);
    got[k] = 0xfeedfeedu;
    gs_topk_select(x, count, k, got, scratch);
    for (size_t i = 0; i < k; i++) {
        if (got[i] != expected[i]) {
            fail_msg("%zu of %zu: index %zu is %u (%a), not %u (%a)", k, count, i, got[i], (double)x[got[i] % count],
                     expected[i], (double)x[expected[i]]);
        }
    }
    assert_int_equal(got[k], 0xfeedfeedu);
    free(scratch);
    free(got);
    free(expected);
    free(entries);
}

/* With k at both ends and in between. */
static void expect_selections(const float *x, size_t count, seeded *random) {
    expect_selection(x, count, 0);
    expect_selection(x, count, count);
    for (size_t k = 1; k < count; k *= 3) {
        expect_selection(x, count, k);
        expect_selection(x, count, count - k);
        expect_selection(x, count, seeded_below(random, count + 1));
    }
}

/* ---- Elements ------------------------------------------------------------------------------------------------------
 */

static float any_bits(seeded *random) {
    return gs_float_from_bits((uint32_t)seeded_next(random));
}

static float one_of_few(seeded *random) {
    static const float few[] = {1.0f, -1.0f, 2.0f, -2.0f, 0.5f, 0.0f, -0.0f};
    return few[seeded_below(random, sizeof few / sizeof few[0])];
}

static float special(seeded *random) {
    static const uint32_t bits[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff, 0x7f7fffff,
                                    0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x3f800000};
    return gs_float_from_bits(bits[seeded_below(random, sizeof bits / sizeof bits[0])]);
}

/* They differ in their last bits only. */
static float close_by(seeded *random) {
    return gs_float_from_bits(0x3f800000u + (uint32_t)seeded_below(random, 600));
}

static float subnormal(seeded *random) {
    return gs_float_from_bits((uint32_t)seeded_next(random) & 0x807fffffu);
}

static float constant(seeded *random) {
    (void)random;
    return -3.0f;
}

static void expect_of(float (*draw)(seeded *random)) {
    static const size_t counts[] = {1, 2, 3, 63, 64, 65, 127, 128, 129, 1000, 20000};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        seeded random = {SEED + c};
        float *const x = malloc(counts[c] * sizeof *x);
        assert_non_null(x);
        for (size_t i = 0; i < counts[c]; i++) {
            x[i] = draw(&random);
        }
        expect_selections(x, counts[c], &random);
        free(x);
    }
}

/* ---- Claims --------------------------------------------------------------------------------------------------------
 */

static void selects_the_largest_magnitudes(void **state) {
    (void)state;
    expect_of(any_bits);
    expect_of(subnormal);
}

static void takes_the_lowest_indices_among_equals(void **state) {
    (void)state;
    expect_of(one_of_few);
    expect_of(constant);
}

static void nan_is_larger_than_inf_which_is_larger_than_everything(void **state) {
    (void)state;
    expect_of(special);
}

static void tells_elements_apart_by_their_last_bit(void **state) {
    (void)state;
    expect_of(close_by);
}

static void selects_nothing_of_nothing(void **state) {
    (void)state;
    void *const scratch = malloc(gs_topk_scratch_bytes(0));
    assert_non_null(scratch);
    uint32_t index = 7;
    gs_topk_select(NULL, 0, 0, &index, scratch);
    assert_int_equal(index, 7);
    free(scratch);
}

/* What is dropped has at most the share (1 - k/d) of all squares. */
static void keeps_more_than_its_share_of_the_squares(void **state) {
    (void)state;
    enum { COUNT = 10000 };
    seeded random = {SEED};
    float *const x = malloc(COUNT * sizeof *x);
    uint32_t *const indices = malloc(COUNT * sizeof *indices);
    void *const scratch = malloc(gs_topk_scratch_bytes(COUNT));
    assert_true(x != NULL && indices != NULL && scratch != NULL);
    double all = 0;
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = (float)((double)(seeded_next(&random) >> 11) * 0x1p-53 - 0.5);
        all += (double)x[i] * (double)x[i];
    }
    for (size_t k = 1; k <= COUNT; k *= 10) {
        gs_topk_select(x, COUNT, k, indices, scratch);
        double dropped = all;
        for (size_t i = 0; i < k; i++) {
            dropped -= (double)x[indices[i]] * (double)x[indices[i]];
        }
        assert_true(dropped <= (1.0 - (double)k / COUNT) * all + 1e-9 * all);
    }
    free(scratch);
    free(indices);
    free(x);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selects_the_largest_magnitudes),
        cmocka_unit_test(takes_the_lowest_indices_among_equals),
        cmocka_unit_test(nan_is_larger_than_inf_which_is_larger_than_everything),
        cmocka_unit_test(tells_elements_apart_by_their_last_bit),
        cmocka_unit_test(selects_nothing_of_nothing),
        cmocka_unit_test(keeps_more_than_its_share_of_the_squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
