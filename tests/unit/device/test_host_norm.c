/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device_host.h"

#include "../collective/shard_oracle.h"
#include "seeded.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The two passes of clipping, against arithmetic in long double. */

enum { ROWS_MAX = 5, COLUMNS_MAX = 1100, PITCH_MAX = COLUMNS_MAX + 7 };
#define SEED 20240606
#define SPACE ((size_t)ROWS_MAX * PITCH_MAX * 8)

static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

typedef struct shape {
    size_t rows;
    size_t columns;
    size_t pitch;
} shape;

static const shape shapes[] = {{1, 0, 0},       {1, 1, 1},       {1, 1100, 1100}, {3, 7, 9},
                               {5, 1100, 1107}, {2, 1024, 1025}, {4, 1, 2},       {5, 1023, 1023}};
#define SHAPES (sizeof shapes / sizeof shapes[0])

static unsigned char memory[SPACE];
static unsigned char memory_before[SPACE];

/* Values of both signs over 20 binades, some of them subnormal halves. */
static gs_tensor tensor_of(shape of, gsync_dtype dtype, uint64_t seed) {
    seeded random = {seed};
    memset(memory, 0x7f, sizeof memory); /* NaN or huge: what lies between rows must not matter */
    for (size_t row = 0; row < of.rows; row++) {
        for (size_t column = 0; column < of.columns; column++) {
            const uint64_t bits = seeded_next(&random);
            shard_store(dtype, memory, row * of.pitch + column, ldexp((double)(int64_t)bits, (int)(bits % 20) - 76));
        }
    }
    memcpy(memory_before, memory, sizeof memory);
    return (gs_tensor){.data = memory, .rows = of.rows, .columns = of.columns, .row_pitch = of.pitch, .dtype = dtype};
}

static double element_before(const gs_tensor *tensor, size_t index) {
    const size_t at = index / tensor->columns * tensor->row_pitch + index % tensor->columns;
    return shard_load(tensor->dtype, memory_before, at);
}

/* ---- Squares ----------------------------------------------------------------------------------------------------- */

/* A chain of at most 64 additions in each of 16 sums of a block, then 4, then one for each block. */
static long double bound_of(size_t count) {
    return ((long double)count / 1024 + 70) * (long double)(DBL_EPSILON / 2);
}

static void sums_squares_of_any_shape_to_float64_precision(void **state) {
    (void)state;
    const double scales[] = {1.0, 0x1p-40, 0x1p400, 0x1p-400};
    for (size_t trial = 0; trial < 4 * SHAPES * 4; trial++) {
        const gs_tensor tensor = tensor_of(shapes[trial / 4 % SHAPES], dtypes[trial % 4], SEED + trial);
        const double scale = scales[trial / (4 * SHAPES)];
        long double expected = 0;
        for (size_t i = 0; i < gs_tensor_count(&tensor); i++) {
            const long double scaled = (long double)element_before(&tensor, i) * (long double)scale;
            expected += scaled * scaled;
        }
        const long double error = (long double)gs_host_square_sum(&tensor, scale) - expected;
        if (fabsl(error) > bound_of(gs_tensor_count(&tensor)) * expected) {
            fail_msg("trial %zu: %Lg off %Lg", trial, error, expected);
        }
        assert_memory_equal(memory, memory_before, sizeof memory);
    }
}

/* On other ranks the same matrix may have another pitch. */
static void the_pitch_does_not_change_a_bit_of_the_sum(void **state) {
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        for (size_t columns = 1; columns <= 1100; columns = columns * 3 + 1) {
            for (int scaled = 0; scaled < 2; scaled++) {
                const double scale = scaled ? 0.25 : 1.0;
                const gs_tensor dense = tensor_of((shape){5, columns, columns}, dtypes[d], SEED + columns);
                const double expected = gs_host_square_sum(&dense, scale);
                const gs_tensor wide = tensor_of((shape){5, columns, columns + 7}, dtypes[d], SEED + columns);
                assert_true(gs_host_square_sum(&wide, scale) == expected);
            }
        }
    }
}

static void squares_beyond_float64_come_with_a_scale(void **state) {
    (void)state;
    double values[3] = {1e200, -1e200, 1e-200};
    const gs_tensor tensor = {values, 1, 3, 3, GSYNC_FLOAT64};
    assert_true(isinf(gs_host_square_sum(&tensor, 1.0)));
    const double norm = sqrt(gs_host_square_sum(&tensor, 0x1p-600)) * 0x1p600;
    assert_true(fabs(norm - 1e200 * sqrt(2.0)) <= 1e200 * 4 * DBL_EPSILON);
}

static void inf_and_nan_come_through_the_sum(void **state) {
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        for (int scaled = 0; scaled < 2; scaled++) {
            const double scale = scaled ? 0x1p-600 : 1.0;
            const gs_tensor tensor = tensor_of((shape){1, 1100, 1100}, dtypes[d], SEED);
            shard_store(dtypes[d], memory, 1090, -(double)INFINITY);
            assert_true(isinf(gs_host_square_sum(&tensor, scale)));
            shard_store(dtypes[d], memory, 3, (double)NAN);
            assert_true(isnan(gs_host_square_sum(&tensor, scale)));
        }
    }
}

/* ---- Scaling ----------------------------------------------------------------------------------------------------- */

/* The spacing of a type's numbers at a value, the smallest one below its normal numbers. */
static long double spacing_at(gsync_dtype dtype, double value) {
    static const struct {
        int digits, exponent_min; /* as in float.h: DBL_MANT_DIG, DBL_MIN_EXP */
    } formats[] = {{24, -125}, {53, -1021}, {11, -13}, {8, -125}};
    int exponent;
    (void)frexp(value, &exponent);
    const int at_least = formats[dtype - 1].exponent_min;
    return ldexpl(1.0L, (exponent < at_least || value == 0.0 ? at_least : exponent) - formats[dtype - 1].digits);
}

static void expect_scaled(const gs_tensor *tensor, double factor, size_t trial) {
    for (size_t i = 0; i < gs_tensor_count(tensor); i++) {
        const size_t at = i / tensor->columns * tensor->row_pitch + i % tensor->columns;
        const double got = shard_load(tensor->dtype, memory, at);
        const double before = element_before(tensor, i);
        const long double exact = (long double)before * (long double)factor;
        /* Half a unit of the result, and a hair for the roundings to wider types on the way. */
        const long double bound = spacing_at(tensor->dtype, (double)exact) * (0.5L + 0x1p-12L);
        if (fabsl((long double)got - exact) > bound || signbit(got) != signbit(before)) {
            fail_msg("trial %zu, element %zu: %a x %a gave %a", trial, i, before, factor, got);
        }
        shard_store(tensor->dtype, memory, at, before);
    }
    for (size_t row = 0; row < tensor->rows; row++) {
        const size_t size = gsync_dtype_size(tensor->dtype);
        const size_t end = (row * tensor->row_pitch + tensor->columns) * size;
        assert_memory_equal(memory + end, memory_before + end, (tensor->row_pitch - tensor->columns) * size);
    }
}

static void scales_any_shape_and_leaves_what_is_between_rows(void **state) {
    (void)state;
    const double factors[] = {0.3, 1.0 / 3, 0x1p-3, 1e-4, 1e-9};
    for (size_t trial = 0; trial < 4 * SHAPES * 5; trial++) {
        const gs_tensor tensor = tensor_of(shapes[trial / 4 % SHAPES], dtypes[trial % 4], SEED + trial);
        const double factor = factors[trial / (4 * SHAPES)];
        gs_host_scale(&tensor, factor);
        expect_scaled(&tensor, factor, trial);
    }
}

/* Float32 holds neither the factor nor what is lost with it. */
static void a_factor_below_float32_scales_float32(void **state) {
    (void)state;
    float values[2] = {3e38f, -1e38f};
    const gs_tensor tensor = {values, 1, 2, 2, GSYNC_FLOAT32};
    gs_host_scale(&tensor, 1e-46);
    assert_true(values[0] == (float)((double)3e38f * 1e-46));
    assert_true(values[1] == (float)((double)-1e38f * 1e-46));
    assert_true(values[0] != 0.0f);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_squares_of_any_shape_to_float64_precision),
        cmocka_unit_test(the_pitch_does_not_change_a_bit_of_the_sum),
        cmocka_unit_test(squares_beyond_float64_come_with_a_scale),
        cmocka_unit_test(inf_and_nan_come_through_the_sum),
        cmocka_unit_test(scales_any_shape_and_leaves_what_is_between_rows),
        cmocka_unit_test(a_factor_below_float32_scales_float32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
