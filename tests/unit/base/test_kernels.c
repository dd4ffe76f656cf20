/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */
/* Not under valgrind, which does not flush subnormals when asked to. AddressSanitizer sees what lies behind buffers. */
#include "base/kernels.h"

#include "../collective/shard_oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernel_trials.h"

/* ---- Kernels of one or two buffers ---------------------------------------------------------------------------------
 */

typedef enum operation { ADD, MIN, MAX, SCALE, DIVIDE, ACCUMULATE, OPERATIONS } operation;

static const char *const operation_names[] = {"add", "min", "max", "scale", "divide", "accumulate"};

static void call_f32(const gs_kernels *kernels, operation op, const trial *it, void *to, const void *a, const void *b) {
    switch (op) {
    case ADD:
        kernels->add_f32(to, b, it->count);
        break;
    case MIN:
        kernels->min_f32(to, b, it->count);
        break;
    case MAX:
        kernels->max_f32(to, b, it->count);
        break;
    case SCALE:
        kernels->scale_f32(to, a, (float)it->scalar, it->count);
        break;
    case DIVIDE:
        kernels->divide_f32(to, gs_division_by(it->scalar), it->count);
        break;
    default:
        kernels->accumulate_f32(to, a, b, (float)it->scalar, it->count);
    }
}

static void call_f64(const gs_kernels *kernels, operation op, const trial *it, void *to, const void *a, const void *b) {
    switch (op) {
    case ADD:
        kernels->add_f64(to, b, it->count);
        break;
    case MIN:
        kernels->min_f64(to, b, it->count);
        break;
    case MAX:
        kernels->max_f64(to, b, it->count);
        break;
    case SCALE:
        kernels->scale_f64(to, a, it->scalar, it->count);
        break;
    case DIVIDE:
        kernels->divide_f64(to, gs_division_by(it->scalar), it->count);
        break;
    default:
        kernels->accumulate_f64(to, a, b, it->scalar, it->count);
    }
}

/* Returns what the kernel made of a and b. All start from a copy of a; those with a target of their own may write it.
 */
static const void *outcome_of(const gs_kernels *kernels, operation op, const trial *it) {
    const size_t size = gsync_dtype_size(it->dtype);
    const void *const a = elements_of(it, 0);
    const void *const b = elements_of(it, 1);
    void *const to = copy_of(it, a, size);
    const void *const first = it->is_in_place ? to : a;
    const unsigned before = enter_mode(it);
    if (it->dtype == GSYNC_FLOAT64) {
        call_f64(kernels, op, it, to, first, b);
    } else {
        call_f32(kernels, op, it, to, first, b);
    }
    leave_mode(before);
    return to;
}

static void store_with_one_nan(gsync_dtype dtype, void *to, size_t index, double value) {
    const uint32_t narrow = 0x7fc00000u;
    const uint64_t wide = UINT64_C(0x7ff8000000000000);
    if (!isnan(value)) {
        shard_store(dtype, to, index, value);
    } else if (dtype == GSYNC_FLOAT64) {
        memcpy((unsigned char *)to + index * sizeof wide, &wide, sizeof wide);
    } else {
        memcpy((unsigned char *)to + index * sizeof narrow, &narrow, sizeof narrow);
    }
}

static double arithmetic(operation op, const trial *it, double a, double b) {
    const double factor = shard_rounded(it->dtype, it->scalar);
    switch (op) {
    case ADD:
        return shard_rounded(it->dtype, a + b);
    case SCALE:
        return shard_rounded(it->dtype, a * factor);
    case DIVIDE:
        return shard_rounded(it->dtype, a / it->scalar);
    default:
        return shard_rounded(it->dtype, a + shard_rounded(it->dtype, b * factor));
    }
}

static const void *expected_of(operation op, const trial *it) {
    const size_t size = gsync_dtype_size(it->dtype);
    const unsigned char *const as = elements_of(it, 0);
    const unsigned char *const bs = elements_of(it, 1);
    unsigned char *const expected = buffer_of(it, size);
    for (size_t i = 0; i < it->count; i++) {
        const double a = shard_load(it->dtype, as, i);
        const double b = shard_load(it->dtype, bs, i);
        if (op == MIN || op == MAX) {
            const bool takes_b = isnan(b) || (op == MIN ? b < a : b > a);
            memcpy(expected + i * size, (takes_b ? bs : as) + i * size, size);
        } else {
            store_with_one_nan(it->dtype, expected, i, arithmetic(op, it, a, b));
        }
    }
    return expected;
}

/* ---- Reductions ----------------------------------------------------------------------------------------------------
 */

typedef struct reduced {
    void *targets[BUFFERS_MAX];
    int count;
} reduced;

static reduced reduction_of(const gs_kernels *kernels, const trial *it) {
    const size_t size = gsync_dtype_size(it->dtype);
    reduced to = {.count = it->is_in_place ? it->source_count : it->target_count};
    const void *sources[BUFFERS_MAX];
    for (int s = 0; s < it->source_count; s++) {
        void *const elements = elements_of(it, s);
        sources[s] = (unsigned char *)elements - it->offset * size;
        to.targets[s] = elements;
    }
    for (int t = 0; t < to.count; t++) {
        to.targets[t] = it->is_in_place ? to.targets[t] : buffer_of(it, size);
    }
    void *targets[BUFFERS_MAX];
    for (int t = 0; t < to.count; t++) {
        targets[t] = (unsigned char *)to.targets[t] - it->offset * size;
    }
    const gs_reduction reduction = {.sources = sources,
                                    .source_count = it->source_count,
                                    .targets = targets,
                                    .target_count = to.count,
                                    .division = gs_division_by(it->scalar),
                                    .first = it->offset,
                                    .count = it->count};
    const unsigned before = enter_mode(it);
    (it->dtype == GSYNC_FLOAT64 ? kernels->reduce_f64 : kernels->reduce_f32)(&reduction);
    leave_mode(before);
    return to;
}

static const void *expected_reduction(const trial *it) {
    unsigned char *const expected = buffer_of(it, gsync_dtype_size(it->dtype));
    const void *sources[BUFFERS_MAX];
    for (int s = 0; s < it->source_count; s++) {
        sources[s] = elements_of(it, s);
    }
    for (size_t i = 0; i < it->count; i++) {
        double sum = shard_load(it->dtype, sources[0], i);
        for (int s = 1; s < it->source_count; s++) {
            sum = shard_rounded(it->dtype, sum + shard_load(it->dtype, sources[s], i));
        }
        store_with_one_nan(it->dtype, expected, i, shard_rounded(it->dtype, sum / it->scalar));
    }
    return expected;
}

static void expect_reduction(const trial *it, const char *name, const reduced *got, const void *expected) {
    for (int t = 0; t < got->count; t++) {
        expect_bits(it, name, got->targets[t], expected, gsync_dtype_size(it->dtype));
    }
}

/* ---- Sums of squares and the search for what is not finite ---------------------------------------------------------
 */

static double square_sum_of(const gs_kernels *kernels, const trial *it) {
    const void *const x = elements_of(it, 0);
    const unsigned before = enter_mode(it);
    const double sum =
        it->dtype == GSYNC_FLOAT64 ? kernels->square_sum_f64(x, it->count) : kernels->square_sum_f32(x, it->count);
    leave_mode(before);
    return sum;
}

static bool is_finite(const gs_kernels *kernels, gsync_dtype dtype, const void *x, size_t count) {
    return dtype == GSYNC_FLOAT64 ? kernels->is_finite_f64(x, count) : kernels->is_finite_f32(x, count);
}

/* Sixteen sums, then a tree. */
static double expected_square_sum(const trial *it) {
    const void *const x = elements_of(it, 0);
    double sums[16] = {0};
    for (size_t i = 0; i < it->count; i++) {
        const double value = shard_load(it->dtype, x, i);
        sums[i % 16] += value * value;
    }
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            sums[i] += sums[i + width];
        }
    }
    return isnan(sums[0]) ? (double)NAN : sums[0];
}

/* ---- Sixteen bits --------------------------------------------------------------------------------------------------
 */

static const half_format half = {5, 10};
static const half_format bfloat = {8, 7};

static uint32_t widened(half_format format, uint16_t bits) {
    if (half_is_nan(format, bits)) {
        const uint32_t quiet = format.fraction_bits == 10 ? 0x00400000u : 0; /* bfloats are only shifted */
        const uint32_t fraction = bits & ((1u << format.fraction_bits) - 1);
        return (uint32_t)(bits & 0x8000u) << 16 | 0x7f800000u | quiet | fraction << (23 - format.fraction_bits);
    }
    return gs_float_bits((float)half_value(format, bits));
}

static uint16_t narrowed(half_format format, uint32_t bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        const uint32_t fraction = (bits & 0x7fffffu) >> (23 - format.fraction_bits);
        const uint32_t quiet = 1u << (format.fraction_bits - 1);
        return (uint16_t)((bits >> 16 & 0x8000u) | half_infinity(format) | quiet | fraction);
    }
    return half_nearest(format, (double)gs_float_from_bits(bits));
}

static void expect_all_widened(const gs_kernels *kernels, half_format format, bool flushes) {
    const trial all = {.dtype = GSYNC_FLOAT32, .count = 65536, .offset = 3, .flushes = flushes};
    uint16_t *const from = buffer_of(&all, sizeof *from);
    float *const to = buffer_of(&all, sizeof *to);
    uint32_t *const expected = buffer_of(&all, sizeof *expected);
    for (uint32_t bits = 0; bits < 65536; bits++) {
        from[bits] = (uint16_t)bits;
        expected[bits] = widened(format, (uint16_t)bits);
    }
    const unsigned before = enter_mode(&all);
    (format.fraction_bits == 10 ? kernels->widen_half : kernels->widen_bfloat)(to, from, all.count);
    leave_mode(before);
    expect_bits(&all, kernels->name, to, expected, sizeof *to);
    free_buffers();
}

static void expect_narrowed(const gs_kernels *kernels, half_format format, const trial *it) {
    const uint32_t *const from = elements_of(it, 0);
    uint16_t *const to = buffer_of(it, sizeof *to);
    uint16_t *const expected = buffer_of(it, sizeof *expected);
    for (size_t i = 0; i < it->count; i++) {
        expected[i] = narrowed(format, from[i]);
    }
    const unsigned before = enter_mode(it);
    (format.fraction_bits == 10 ? kernels->narrow_half : kernels->narrow_bfloat)(to, (const float *)from, it->count);
    leave_mode(before);
    expect_bits(it, kernels->name, to, expected, sizeof *to);
    free_buffers();
}

/* ---- Claims --------------------------------------------------------------------------------------------------------
 */

/* Calls the claim for every table that this machine can run. */
static void for_every_isa(void (*claim)(const gs_kernels *kernels, bool flushes)) {
    for (gs_isa isa = GS_ISA_PLAIN; isa < GS_ISA_COUNT; isa++) {
        const gs_kernels *const kernels = gs_kernels_get(isa);
        for (int flushes = 0; kernels != NULL && flushes <= CAN_FLUSH; flushes++) {
            claim(kernels, flushes != 0);
            free_buffers();
        }
    }
}

/* What must come out is known where nothing is flushed; elsewhere tables are compared with the plain one. */
static void expect_operations(const gs_kernels *kernels, bool flushes) {
    for (int number = 0; number < 2 * TRIALS * OPERATIONS; number++) {
        const operation op = (operation)(number % OPERATIONS);
        trial it = trial_of(number / OPERATIONS / 2, number / OPERATIONS % 2 ? GSYNC_FLOAT64 : GSYNC_FLOAT32);
        it.flushes = flushes;
        const void *const expected = flushes ? outcome_of(gs_kernels_get(GS_ISA_PLAIN), op, &it) : expected_of(op, &it);
        const void *const got = outcome_of(kernels, op, &it);
        expect_bits(&it, operation_names[op], got, expected, gsync_dtype_size(it.dtype));
        free_buffers();
    }
}

static void expect_reductions(const gs_kernels *kernels, bool flushes) {
    for (int number = 0; number < 2 * TRIALS; number++) {
        trial it = trial_of(number / 2, number % 2 ? GSYNC_FLOAT64 : GSYNC_FLOAT32);
        it.flushes = flushes;
        const reduced got = reduction_of(kernels, &it);
        const void *expected = flushes ? NULL : expected_reduction(&it);
        if (flushes) {
            trial plain = it;
            plain.is_in_place = false;
            plain.target_count = 1;
            expected = reduction_of(gs_kernels_get(GS_ISA_PLAIN), &plain).targets[0];
        }
        expect_reduction(&it, kernels->name, &got, expected);
        free_buffers();
    }
}

static void expect_square_sums(const gs_kernels *kernels, bool flushes) {
    for (int number = 0; number < 2 * TRIALS; number++) {
        trial it = trial_of(number / 2, number % 2 ? GSYNC_FLOAT64 : GSYNC_FLOAT32);
        it.flushes = flushes;
        it.is_tame = number % 4 < 2;
        const double expected = flushes ? square_sum_of(gs_kernels_get(GS_ISA_PLAIN), &it) : expected_square_sum(&it);
        const double got = square_sum_of(kernels, &it);
        if (memcmp(&got, &expected, sizeof got) != 0) {
            fail_msg("%s: seed %llx, %zu elements: %a, expected %a", kernels->name, (unsigned long long)it.seed,
                     it.count, got, expected);
        }
        free_buffers();
    }
}

static void expect_found(const gs_kernels *kernels, const trial *it, uint64_t seed) {
    static const double strangers[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    unsigned char *const x = elements_of(it, 0);
    for (size_t i = 0; i < it->count; i++) {
        if (!isfinite(shard_load(it->dtype, x, i))) {
            shard_store(it->dtype, x, i, 3e38);
        }
    }
    assert_true(is_finite(kernels, it->dtype, x, it->count));
    if (it->count > 0) {
        seeded random = {seed};
        const size_t where = seeded_below(&random, it->count);
        shard_store(it->dtype, x, where, strangers[seeded_below(&random, 3)]);
        assert_false(is_finite(kernels, it->dtype, x, it->count));
    }
    free_buffers();
}

static void expect_search(const gs_kernels *kernels, bool flushes) {
    for (int number = 0; number < 2 * TRIALS; number++) {
        trial it = trial_of(number / 2, number % 2 ? GSYNC_FLOAT64 : GSYNC_FLOAT32);
        it.flushes = flushes;
        expect_found(kernels, &it, SEED + (uint64_t)number);
    }
}

static void expect_conversions(const gs_kernels *kernels, bool flushes) {
    expect_all_widened(kernels, half, flushes);
    expect_all_widened(kernels, bfloat, flushes);
    for (int number = 0; number < TRIALS; number++) {
        trial it = trial_of(number, GSYNC_FLOAT32);
        it.flushes = flushes;
        expect_narrowed(kernels, half, &it);
        expect_narrowed(kernels, bfloat, &it);
    }
}

static void sums_products_and_comparisons_have_the_same_bits_from_every_isa(void **state) {
    (void)state;
    for_every_isa(expect_operations);
}

static void reductions_have_the_same_bits_from_every_isa(void **state) {
    (void)state;
    for_every_isa(expect_reductions);
}

static void sums_of_squares_have_the_same_bits_from_every_isa(void **state) {
    (void)state;
    for_every_isa(expect_square_sums);
}

static void every_isa_finds_what_is_not_finite(void **state) {
    (void)state;
    for_every_isa(expect_search);
}

static void conversions_have_the_same_bits_from_every_isa(void **state) {
    (void)state;
    for_every_isa(expect_conversions);
}

static void the_best_kernels_are_some_that_run_here(void **state) {
    (void)state;
    const gs_kernels *const best = gs_kernels_best();
    bool is_one = false;
    for (gs_isa isa = GS_ISA_PLAIN; isa < GS_ISA_COUNT; isa++) {
        const gs_kernels *const kernels = gs_kernels_get(isa);
        print_message("isa %d: %s\n", (int)isa, kernels == NULL ? "not here" : kernels->name);
        is_one |= best == kernels;
    }
    assert_true(is_one && best != NULL && gs_kernels_get(GS_ISA_PLAIN) != NULL && gs_kernels_get(GS_ISA_COUNT) == NULL);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_products_and_comparisons_have_the_same_bits_from_every_isa),
        cmocka_unit_test(reductions_have_the_same_bits_from_every_isa),
        cmocka_unit_test(sums_of_squares_have_the_same_bits_from_every_isa),
        cmocka_unit_test(every_isa_finds_what_is_not_finite),
        cmocka_unit_test(conversions_have_the_same_bits_from_every_isa),
        cmocka_unit_test(the_best_kernels_are_some_that_run_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
