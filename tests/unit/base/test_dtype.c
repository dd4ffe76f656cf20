/* SPDX-License-Identifier: Apache-2.0 */
#include "base/convert.h"
#include "base/dtype.h"

#include "half_oracle.h"
#include "seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct facts {
    gsync_dtype dtype;
    size_t size;
    const char *name;
    bool is_floating;
    gsync_dtype wide;
} facts;

static const facts known[] = {
    {GSYNC_FLOAT32, 4, "float32", true, GSYNC_FLOAT32}, {GSYNC_FLOAT64, 8, "float64", true, GSYNC_FLOAT64},
    {GSYNC_FLOAT16, 2, "float16", true, GSYNC_FLOAT32}, {GSYNC_BFLOAT16, 2, "bfloat16", true, GSYNC_FLOAT32},
    {GSYNC_INT32, 4, "int32", false, GSYNC_INT64},      {GSYNC_INT64, 8, "int64", false, GSYNC_INT64},
    {GSYNC_UINT8, 1, "uint8", false, GSYNC_INT64},
};
#define KNOWN (sizeof known / sizeof known[0])

static void every_dtype_has_its_size_name_and_sum_type(void **state) {
    (void)state;
    for (size_t i = 0; i < KNOWN; i++) {
        assert_int_equal(gsync_dtype_size(known[i].dtype), known[i].size);
        assert_string_equal(gs_dtype_name(known[i].dtype), known[i].name);
        assert_int_equal(gs_dtype_is_floating(known[i].dtype), known[i].is_floating);
        assert_int_equal(gs_dtype_wide(known[i].dtype), known[i].wide);
    }
}

static void a_number_that_is_no_dtype_has_no_size(void **state) {
    (void)state;
    const int strangers[] = {0, 8, -1, 1000};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(gsync_dtype_size((gsync_dtype)strangers[i]), 0);
        assert_false(gs_dtype_is_floating((gsync_dtype)strangers[i]));
        assert_string_equal(gs_dtype_name((gsync_dtype)strangers[i]), "unknown");
    }
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

enum { SPACE = GS_BLOCK * 8 + 64, GUARD = 0x5a };

/* Any bytes are a valid element of any dtype. */
static void fill_randomly(unsigned char *bytes, size_t count, uint64_t seed) {
    seeded random = {seed};
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (unsigned char)seeded_next(&random);
    }
}

static uint64_t element(const unsigned char *at, size_t size) {
    uint64_t bits = 0;
    memcpy(&bits, at, size);
    return bits;
}

/* NaNs may become quiet on the way. */
static bool is_same_element(gsync_dtype dtype, uint64_t a, uint64_t b) {
    if (a == b) {
        return true;
    }
    const half_format formats[] = {{5, 10}, {8, 7}};
    const half_format format = formats[dtype == GSYNC_BFLOAT16];
    return gsync_dtype_size(dtype) == 2 && half_is_nan(format, (uint16_t)a) && half_is_nan(format, (uint16_t)b);
}

static void expect_round_trip(gsync_dtype dtype, size_t offset, size_t count) {
    static unsigned char from[SPACE];
    static unsigned char to[SPACE];
    static gs_wide_block wide;
    const size_t size = gsync_dtype_size(dtype);
    fill_randomly(from, sizeof from, count * 8 + (uint64_t)dtype);
    memset(to, GUARD, sizeof to);
    gs_widen(&wide, from + offset * size, dtype, count);
    gs_narrow(to + offset * size, &wide, dtype, count);
    for (size_t i = 0; i < count; i++) {
        const uint64_t before = element(from + (offset + i) * size, size);
        const uint64_t after = element(to + (offset + i) * size, size);
        if (!is_same_element(dtype, before, after)) {
            fail_msg("%s element %zu of %zu: %llx became %llx", gs_dtype_name(dtype), i, count,
                     (unsigned long long)before, (unsigned long long)after);
        }
    }
    for (size_t i = 0; i < sizeof to; i++) {
        assert_true(to[i] == GUARD || (i >= offset * size && i < (offset + count) * size));
    }
}

static void a_block_of_any_length_and_place_survives_widening_and_narrowing(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000, GS_BLOCK - 1, GS_BLOCK};
    for (size_t d = 0; d < KNOWN; d++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            expect_round_trip(known[d].dtype, 0, counts[c]);
            expect_round_trip(known[d].dtype, 1, counts[c]);
            expect_round_trip(known[d].dtype, 3, counts[c]);
        }
    }
}

static void a_block_of_halves_is_rounded_like_one_half_after_the_other(void **state) {
    (void)state;
    static gs_wide_block wide;
    static uint16_t halves[GS_BLOCK];
    static uint16_t bfloats[GS_BLOCK];
    seeded random = {77};
    for (int i = 0; i < GS_BLOCK; i++) {
        const uint32_t bits = (uint32_t)seeded_next(&random);
        wide.f[i] = gs_float_from_bits(i % 2 ? bits : ((bits & 0x80ffffffu) | ((96u + (bits >> 24) % 48u) << 23)));
    }
    gs_narrow(halves, &wide, GSYNC_FLOAT16, GS_BLOCK);
    gs_narrow(bfloats, &wide, GSYNC_BFLOAT16, GS_BLOCK);
    for (int i = 0; i < GS_BLOCK; i++) {
        assert_int_equal(halves[i], gs_half_from_float(wide.f[i]));
        assert_int_equal(bfloats[i], gs_bfloat_from_float(wide.f[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_has_its_size_name_and_sum_type),
        cmocka_unit_test(a_number_that_is_no_dtype_has_no_size),
        cmocka_unit_test(a_block_of_any_length_and_place_survives_widening_and_narrowing),
        cmocka_unit_test(a_block_of_halves_is_rounded_like_one_half_after_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
