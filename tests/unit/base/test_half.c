/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */
/* Not under valgrind, which does not flush subnormals when asked to. */
#include "base/dtype.h"

#include "half_oracle.h"
#include "seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cmocka.h>

#define RANDOM_FLOATS 1000000
#define SEED 20240301

/* ---- The two formats as one ----------------------------------------------------------------------------------------
 */

typedef struct subject {
    half_format format;
    float (*widen)(uint16_t bits);
    uint16_t (*narrow)(float value);
} subject;

static float widen_half(uint16_t bits) {
    return gs_half_to_float(bits);
}

static uint16_t narrow_half(float value) {
    return gs_half_from_float(value);
}

static float widen_bfloat(uint16_t bits) {
    return gs_bfloat_to_float(bits);
}

static uint16_t narrow_bfloat(float value) {
    return gs_bfloat_from_float(value);
}

static const subject half = {{5, 10}, widen_half, narrow_half};
static const subject bfloat = {{8, 7}, widen_bfloat, narrow_bfloat};

/* Compared as bits: whether flushing is on must not matter to the comparison. */
static void expect_widened(const subject *of, uint32_t bits) {
    const uint32_t got = gs_float_bits(of->widen((uint16_t)bits));
    const uint32_t expected = gs_float_bits((float)half_value(of->format, (uint16_t)bits));
    const bool is_nan = half_is_nan(of->format, (uint16_t)bits);
    if (is_nan ? (got & 0x7fffffffu) <= 0x7f800000u || (got >> 31) != (bits >> 15) : got != expected) {
        fail_msg("%04x became %08x, expected %08x", bits, got, expected);
    }
}

static void expect_narrowed(const subject *of, uint32_t float_bits) {
    const float value = gs_float_from_bits(float_bits);
    const uint16_t got = of->narrow(value);
    if ((float_bits & 0x7fffffffu) > 0x7f800000u) {
        if (!half_is_nan(of->format, got) || (got >> 15) != (float_bits >> 31)) {
            fail_msg("the NaN %08x became %04x", float_bits, got);
        }
        return;
    }
    const uint16_t expected = half_nearest(of->format, (double)value);
    if (got != expected) {
        fail_msg("%08x (%a) became %04x, expected %04x", float_bits, (double)value, got, expected);
    }
}

static void expect_all_widened(const subject *of) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        expect_widened(of, bits);
    }
}

static void expect_all_back(const subject *of) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const uint16_t got = of->narrow(of->widen((uint16_t)bits));
        if (half_is_nan(of->format, (uint16_t)bits) ? !half_is_nan(of->format, got) : got != bits) {
            fail_msg("%04x came back as %04x", bits, got);
        }
    }
}

/* Every number in the middle between two neighbours, of either sign, with the floats on either side of it. */
static void expect_ties_even(const subject *of) {
    for (uint16_t bits = 0; bits < half_infinity(of->format); bits++) {
        const double below = half_magnitude(of->format, bits);
        const double above = half_magnitude(of->format, (uint16_t)(bits + 1));
        const uint32_t tie = gs_float_bits((float)((below + above) / 2));
        for (uint32_t sign = 0; sign < 2; sign++) {
            expect_narrowed(of, (sign << 31) | tie);
            expect_narrowed(of, (sign << 31) | (tie + 1));
            expect_narrowed(of, (sign << 31) | (tie != 0 ? tie - 1 : tie));
        }
    }
}

static void expect_random(const subject *of) {
    seeded random = {SEED};
    for (int i = 0; i < RANDOM_FLOATS; i++) {
        const uint32_t bits = (uint32_t)seeded_next(&random);
        expect_narrowed(of, bits);
        /* Most floats are far outside a half's range: the same again inside it, and in its subnormal part. */
        expect_narrowed(of, (bits & 0x80ffffffu) | ((96u + (bits >> 24) % 48u) << 23));
    }
}

static void expect_specials(const subject *of) {
    static const uint32_t sizes[] = {0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x33000000, 0x33000001,
                                     0x33800000, 0x387fffff, 0x38800000, 0x477fe000, 0x477fefff, 0x477ff000,
                                     0x47800000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000, 0x7f800001,
                                     0x7fbfffff, 0x7fc00000, 0x7fffffff};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        expect_narrowed(of, sizes[i]);
        expect_narrowed(of, sizes[i] | 0x80000000u);
    }
}

/* ---- Claims
 * ---------------------------------------------------------------------------------------------------------- */

static void every_half_widens_to_its_value(void **state) {
    (void)state;
    expect_all_widened(&half);
}

static void every_bfloat_widens_to_its_value(void **state) {
    (void)state;
    expect_all_widened(&bfloat);
}

static void every_half_survives_the_way_through_float32(void **state) {
    (void)state;
    expect_all_back(&half);
}

static void every_bfloat_survives_the_way_through_float32(void **state) {
    (void)state;
    expect_all_back(&bfloat);
}

static void a_tie_between_halves_goes_to_the_even_one(void **state) {
    (void)state;
    expect_ties_even(&half);
}

static void a_tie_between_bfloats_goes_to_the_even_one(void **state) {
    (void)state;
    expect_ties_even(&bfloat);
}

static void any_float_becomes_the_nearest_half(void **state) {
    (void)state;
    expect_random(&half);
    expect_specials(&half);
}

static void any_float_becomes_the_nearest_bfloat(void **state) {
    (void)state;
    expect_random(&bfloat);
    expect_specials(&bfloat);
}

/* ---- A trainer that flushes subnormals ------------------------------------------------------------------------------
 */

/*
 * The library's results with flushing on, gathered without judging them: the oracle needs subnormals itself.
 * Outcomes are compared with those of the same conversion with flushing off, which the tests above have judged.
 */
#if defined(__SSE2__)
#define FLUSH_TO_ZERO 0x8000u
#define DENORMALS_ARE_ZERO 0x0040u

typedef struct outcome {
    uint32_t widened[65536];
    uint16_t narrowed[2 * 65536];
} outcome;

static void gather(const subject *of, volatile outcome *into) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        into->widened[bits] = gs_float_bits(of->widen((uint16_t)bits));
        into->narrowed[bits] = of->narrow(gs_float_from_bits(bits << 16));
        into->narrowed[65536 + bits] = of->narrow(gs_float_from_bits((bits * 0x9e3779b9u) >> 1));
    }
}

static void expect_same_when_flushing(const subject *of) {
    static volatile outcome with;
    static volatile outcome without;
    const unsigned before = _mm_getcsr();
    gather(of, &without);
    _mm_setcsr(before | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
    gather(of, &with);
    volatile float smallest = 0x1p-126f;
    smallest *= 0.5f;
    _mm_setcsr(before);
    assert_true(smallest == 0);
    for (uint32_t i = 0; i < 65536; i++) {
        assert_int_equal(with.widened[i], without.widened[i]);
        assert_int_equal(with.narrowed[i], without.narrowed[i]);
        assert_int_equal(with.narrowed[65536 + i], without.narrowed[65536 + i]);
    }
}
#else
static void expect_same_when_flushing(const subject *of) {
    (void)of;
    skip();
}
#endif

static void halves_convert_the_same_when_the_trainer_flushes_subnormals(void **state) {
    (void)state;
    expect_same_when_flushing(&half);
}

static void bfloats_convert_the_same_when_the_trainer_flushes_subnormals(void **state) {
    (void)state;
    expect_same_when_flushing(&bfloat);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_widens_to_its_value),
        cmocka_unit_test(every_bfloat_widens_to_its_value),
        cmocka_unit_test(every_half_survives_the_way_through_float32),
        cmocka_unit_test(every_bfloat_survives_the_way_through_float32),
        cmocka_unit_test(a_tie_between_halves_goes_to_the_even_one),
        cmocka_unit_test(a_tie_between_bfloats_goes_to_the_even_one),
        cmocka_unit_test(any_float_becomes_the_nearest_half),
        cmocka_unit_test(any_float_becomes_the_nearest_bfloat),
        cmocka_unit_test(halves_convert_the_same_when_the_trainer_flushes_subnormals),
        cmocka_unit_test(bfloats_convert_the_same_when_the_trainer_flushes_subnormals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
