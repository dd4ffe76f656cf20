/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device_host.h"

#include "../collective/shard_oracle.h"
#include "seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { ROWS_MAX = 5, COLUMNS_MAX = 1100, PITCH_MAX = COLUMNS_MAX + 7, GUARD = 0x5a };
#define SEED 20240303
#define SPACE ((size_t)ROWS_MAX * PITCH_MAX * 8)

static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

/* columns and pitch; the dense ones are one long row to the library */
typedef struct shape {
    size_t rows;
    size_t columns;
    size_t pitch;
} shape;

static const shape shapes[] = {{1, 1, 1},       {1, 1100, 1100}, {3, 7, 7},     {3, 7, 9},      {5, 1100, 1107},
                               {2, 1024, 1025}, {4, 1, 2},       {1, 700, 707}, {5, 1023, 1023}};
#define SHAPES (sizeof shapes / sizeof shapes[0])

static unsigned char memory[SPACE];
static unsigned char memory_before[SPACE];
static unsigned char wire[SPACE];
static unsigned char accumulator[SPACE];

static void fill(void *buffer, gsync_dtype dtype, size_t count, uint64_t seed) {
    seeded random = {seed};
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = seeded_next(&random);
        shard_store(dtype, buffer, i, ldexp((double)(int64_t)bits, (int)(bits % 16) - 70));
    }
}

static gs_tensor tensor_of(shape of, gsync_dtype dtype, uint64_t seed) {
    fill(memory, dtype, of.rows * of.pitch, seed);
    memcpy(memory_before, memory, sizeof memory);
    memset(wire, GUARD, sizeof wire);
    return (gs_tensor){.data = memory, .rows = of.rows, .columns = of.columns, .row_pitch = of.pitch, .dtype = dtype};
}

static double element_of(const gs_tensor *tensor, const void *from, size_t index) {
    const size_t at = index / tensor->columns * tensor->row_pitch + index % tensor->columns;
    return shard_load(tensor->dtype, from, at);
}

static void expect_wire(const gs_tensor *tensor, gsync_dtype dtype, size_t index, double expected) {
    unsigned char wanted[8];
    const size_t size = gsync_dtype_size(dtype);
    shard_store(dtype, wanted, 0, expected);
    if (memcmp(wire + index * size, wanted, size) != 0) {
        fail_msg("%s, %zu x %zu pitch %zu, element %zu: got %a, expected %a", gs_dtype_name(tensor->dtype),
                 tensor->rows, tensor->columns, tensor->row_pitch, index, shard_load(dtype, wire, index), expected);
    }
}

static void expect_nothing_behind(size_t bytes) {
    for (size_t i = bytes; i < sizeof wire; i++) {
        assert_int_equal(wire[i], GUARD);
    }
}

/* ---- Gathering -----------------------------------------------------------------------------------------------------
 */

/* sum = accumulator + factor * element, each operation rounded to the wide type */
static void expect_gathered(shape of, gsync_dtype dtype, gsync_dtype wire_dtype, const gs_host_term *parts,
                            uint64_t seed) {
    const gsync_dtype wide = gs_dtype_wide(dtype);
    gs_host_term term = *parts;
    const gs_tensor tensor = tensor_of(of, dtype, seed);
    const size_t count = gs_tensor_count(&tensor);
    fill(accumulator, wide, count, seed + 1);
    term.tensor = &tensor;
    gs_host_gather(wire, wire_dtype, &term);
    for (size_t i = 0; i < count; i++) {
        double expected = 0;
        if (term.has_tensor) {
            const double by = shard_rounded(dtype, term.factor);
            expected = shard_rounded(dtype, element_of(&tensor, memory_before, i) * by);
        }
        if (term.accumulator != NULL) {
            const double sum = shard_load(wide, accumulator, i);
            expected = term.has_tensor ? shard_rounded(dtype, sum + expected) : sum;
        }
        expect_wire(&tensor, wire_dtype, i, expected);
    }
    expect_nothing_behind(count * gsync_dtype_size(wire_dtype));
    assert_memory_equal(memory, memory_before, sizeof memory);
}

static void for_all_shapes_and_dtypes(const gs_host_term *parts) {
    for (size_t d = 0; d < 4; d++) {
        for (size_t s = 0; s < SHAPES; s++) {
            expect_gathered(shapes[s], dtypes[d], dtypes[d], parts, SEED + d * 100 + s);
            expect_gathered(shapes[s], dtypes[d], gs_dtype_wide(dtypes[d]), parts, SEED + d * 100 + s);
        }
    }
}

static void gathers_rows_one_behind_the_other(void **state) {
    (void)state;
    const gs_host_term plain = {.has_tensor = true, .factor = 1.0};
    for_all_shapes_and_dtypes(&plain);
}

static void gathers_a_multiple(void **state) {
    (void)state;
    const gs_host_term scaled = {.has_tensor = true, .factor = 0.3};
    for_all_shapes_and_dtypes(&scaled);
}

static void gathers_what_was_accumulated_plus_a_multiple(void **state) {
    (void)state;
    const gs_host_term sum = {.has_tensor = true, .accumulator = accumulator, .factor = 3.0};
    for_all_shapes_and_dtypes(&sum);
}

static void gathers_what_was_accumulated_alone(void **state) {
    (void)state;
    const gs_host_term rest = {.has_tensor = false, .accumulator = accumulator, .factor = 1.0};
    for_all_shapes_and_dtypes(&rest);
}

static void gathers_zeros_where_there_is_nothing(void **state) {
    (void)state;
    const gs_host_term nothing = {.has_tensor = false, .factor = 1.0};
    for_all_shapes_and_dtypes(&nothing);
}

static void gathering_a_dense_tensor_into_its_own_memory_changes_nothing(void **state) {
    (void)state;
    const gs_tensor tensor = tensor_of((shape){1, 1100, 1100}, GSYNC_FLOAT16, SEED);
    const gs_host_term term = {.tensor = &tensor, .has_tensor = true, .factor = 1.0};
    gs_host_gather(memory, GSYNC_FLOAT16, &term);
    assert_memory_equal(memory, memory_before, sizeof memory);
}

/* ---- Scattering ----------------------------------------------------------------------------------------------------
 */

static void expect_scattered(shape of, gsync_dtype dtype, gsync_dtype wire_dtype, uint64_t seed) {
    const gs_tensor tensor = tensor_of(of, dtype, seed);
    fill(wire, wire_dtype, gs_tensor_count(&tensor), seed + 1);
    gs_host_scatter(&tensor, wire, wire_dtype);
    const size_t size = gsync_dtype_size(dtype);
    for (size_t at = 0; at < SPACE / size; at++) {
        const size_t row = at / of.pitch;
        const size_t column = at % of.pitch;
        unsigned char wanted[8];
        memcpy(wanted, memory_before + at * size, size);
        if (row < of.rows && column < of.columns) {
            shard_store(dtype, wanted, 0, shard_load(wire_dtype, wire, row * of.columns + column));
        }
        if (memcmp(memory + at * size, wanted, size) != 0) {
            fail_msg("%s, row %zu column %zu of %zu x %zu", gs_dtype_name(dtype), row, column, of.rows, of.columns);
        }
    }
}

static void scatters_into_rows_and_leaves_what_is_between_them(void **state) {
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        for (size_t s = 0; s < SHAPES; s++) {
            expect_scattered(shapes[s], dtypes[d], dtypes[d], SEED + d * 100 + s);
            expect_scattered(shapes[s], dtypes[d], gs_dtype_wide(dtypes[d]), SEED + d * 100 + s);
        }
    }
}

/* ---- Ranges ------------------------------------------------------------------------------------------------------ */

/* What a range brings is what the whole brings there, wherever the rows end. */
static void expect_range(shape of, gsync_dtype dtype, gsync_dtype wire_dtype, size_t first, size_t count) {
    static unsigned char whole[SPACE];
    const size_t size = gsync_dtype_size(wire_dtype);
    const gs_tensor tensor = tensor_of(of, dtype, SEED + first);
    const gs_host_term term = {.tensor = &tensor, .has_tensor = true, .accumulator = accumulator, .factor = 3.0};
    fill(accumulator, gs_dtype_wide(dtype), of.rows * of.columns, SEED + count);
    gs_host_gather(whole, wire_dtype, &term);
    gs_host_gather_range(wire, wire_dtype, &term, first, count);
    assert_memory_equal(wire, whole + first * size, count * size);
    expect_nothing_behind(count * size);

    memset(wire, 0, sizeof wire);
    gs_host_scatter_range(&tensor, first, count, wire, wire_dtype);
    for (size_t i = 0; i < of.rows * of.columns; i++) {
        const bool is_inside = i >= first && i - first < count;
        const double before = element_of(&tensor, memory_before, i);
        assert_true(element_of(&tensor, memory, i) == (is_inside ? 0.0 : before));
    }
}

static void a_range_is_that_part_of_the_whole(void **state) {
    (void)state;
    seeded random = {SEED};
    for (size_t trial = 0; trial < 40 * SHAPES; trial++) {
        const shape of = shapes[trial % SHAPES];
        const size_t total = of.rows * of.columns;
        const size_t first = seeded_next(&random) % total;
        const size_t count = 1 + seeded_next(&random) % (total - first);
        const gsync_dtype dtype = dtypes[seeded_next(&random) % 4];
        expect_range(of, dtype, trial % 2 == 0 ? dtype : gs_dtype_wide(dtype), first, count);
    }
}

/* ---- Accumulating
 * ---------------------------------------------------------------------------------------------------- */

static void the_first_micro_batch_starts_the_accumulator_and_later_ones_add_to_it(void **state) {
    (void)state;
    for (size_t d = 0; d < 4; d++) {
        const gsync_dtype wide = gs_dtype_wide(dtypes[d]);
        double expected[21];
        memset(accumulator, 0xff, sizeof accumulator); /* NaN: what was there must not matter */
        for (int batch = 0; batch < 3; batch++) {
            const gs_tensor tensor = tensor_of((shape){3, 7, 9}, dtypes[d], SEED + (uint64_t)batch);
            gs_host_accumulate(accumulator, &tensor, batch + 1.0, batch == 0);
            for (size_t i = 0; i < 21; i++) {
                const double term = shard_rounded(wide, element_of(&tensor, memory_before, i) * (batch + 1.0));
                expected[i] = batch == 0 ? term : shard_rounded(wide, expected[i] + term);
            }
        }
        for (size_t i = 0; i < 21; i++) {
            assert_true(shard_load(wide, accumulator, i) == expected[i]);
        }
    }
}

/* ---- Hashing
 * --------------------------------------------------------------------------------------------------------- */

static void every_bit_of_an_element_changes_the_hash_and_no_bit_between_rows_does(void **state) {
    (void)state;
    const shape of = {3, 7, 9};
    const gs_tensor tensor = tensor_of(of, GSYNC_FLOAT32, SEED);
    const uint64_t before = gs_host_hash_tensor(&tensor);
    for (size_t bit = 0; bit < of.rows * of.pitch * 32; bit++) {
        memory[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        const bool is_element = bit / 32 % of.pitch < of.columns;
        assert_true((gs_host_hash_tensor(&tensor) != before) == is_element);
        memory[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
    assert_true(gs_host_hash_tensor(&tensor) == before);
}

static void the_hash_knows_length_order_and_seed(void **state) {
    (void)state;
    const unsigned char zeros[16] = {0};
    const unsigned char ab[16] = {1, 0, 0, 0, 0, 0, 0, 0, 2};
    const unsigned char ba[16] = {2, 0, 0, 0, 0, 0, 0, 0, 1};
    for (size_t n = 1; n <= 16; n++) {
        assert_true(gs_host_hash(zeros, n, 0) != gs_host_hash(zeros, n - 1, 0));
    }
    assert_true(gs_host_hash(ab, 16, 0) != gs_host_hash(ba, 16, 0));
    assert_true(gs_host_hash(ab, 16, 0) != gs_host_hash(ab, 16, 1));
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_rows_one_behind_the_other),
        cmocka_unit_test(gathers_a_multiple),
        cmocka_unit_test(gathers_what_was_accumulated_plus_a_multiple),
        cmocka_unit_test(gathers_what_was_accumulated_alone),
        cmocka_unit_test(gathers_zeros_where_there_is_nothing),
        cmocka_unit_test(gathering_a_dense_tensor_into_its_own_memory_changes_nothing),
        cmocka_unit_test(scatters_into_rows_and_leaves_what_is_between_them),
        cmocka_unit_test(a_range_is_that_part_of_the_whole),
        cmocka_unit_test(the_first_micro_batch_starts_the_accumulator_and_later_ones_add_to_it),
        cmocka_unit_test(every_bit_of_an_element_changes_the_hash_and_no_bit_between_rows_does),
        cmocka_unit_test(the_hash_knows_length_order_and_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
