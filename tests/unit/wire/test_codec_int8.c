/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: wrap=gs_kernels_best,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec_trials.h"

#include <float.h>

enum { BLOCK = 256, BYTES = 260, BLOCKS = 40 };

static const gs_codec_terms stochastic_terms = {.scale = 1.0f, .is_stochastic = true, .key = SEED, .element = 1024};
static const gs_findings nothing = {.nonfinite_source = -1};

static double absmax_of(const float *x) {
    double most = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        most = fabs((double)x[i]) > most ? fabs((double)x[i]) : most;
    }
    return most;
}

static float scale_in(const unsigned char *block) {
    float scale;
    memcpy(&scale, block + BLOCK, sizeof scale);
    return scale;
}

/* absmax / 127 as float32: to nearest, upwards where subnormal, downwards where 127 times it would be infinite. */
static float expected_scale(double absmax) {
    const float nearest = (float)(absmax / 127.0);
    if (nearest < FLT_MIN && absmax < 127.0 * (double)FLT_MIN) {
        return (float)(ceil(absmax * 0x1p149 / 127.0) * 0x1p-149);
    }
    return isinf((float)((double)nearest * 127.0)) ? nextafterf(nearest, 0.0f) : nearest;
}

/*
 * The bound of the header for rounding to nearest, and twice that for stochastic rounding, whose codes may be the
 * second nearest. Half a step of the smallest subnormal for the scale, which is rounded up there, times 1.
 */
static void expect_block(const float *x, const unsigned char *wire, const float *back, bool is_stochastic) {
    const double absmax = absmax_of(x);
    const double steps = is_stochastic ? 127.0 : 254.0;
    const double bound = absmax / steps * (1.0 + 0x1p-14) + 0x1p-149;
    const float scale = scale_in(wire);
    expect_same_float("scale", 0, (float)absmax, scale, expected_scale(absmax));
    for (size_t i = 0; i < BLOCK; i++) {
        const int code = (int8_t)wire[i];
        assert_in_range(code + 127, 0, 254);
        expect_same_float("int8", i, x[i], back[i], (float)((double)code * (double)scale));
        if (fabs((double)back[i] - (double)x[i]) > bound) {
            fail_msg("%s: %a became %a in a block of %a", tested_kernels->name, (double)x[i], (double)back[i], absmax);
        }
    }
}

static void expect_blocks(const float *x, size_t blocks, const gs_codec_terms *terms) {
    unsigned char *const wire = new_bytes(blocks * BYTES);
    unsigned char *const unnoted = new_bytes(blocks * BYTES);
    float *const back = new_bytes(blocks * BLOCK * sizeof *back);
    gs_findings findings = nothing;
    gs_codec_int8.encode(wire, x, blocks * BLOCK, terms, &findings);
    gs_codec_int8.encode(unnoted, x, blocks * BLOCK, terms, NULL);
    gs_codec_int8.decode(back, wire, blocks * BLOCK, terms);
    assert_memory_equal(wire, unnoted, blocks * BYTES);
    uint64_t flushed = 0;
    double absmax = 0;
    for (size_t b = 0; b < blocks; b++) {
        expect_block(x + b * BLOCK, wire + b * BYTES, back + b * BLOCK, terms->is_stochastic);
        absmax = absmax_of(x + b * BLOCK) > absmax ? absmax_of(x + b * BLOCK) : absmax;
    }
    for (size_t i = 0; i < blocks * BLOCK; i++) {
        flushed += x[i] != 0.0f && wire[i / BLOCK * BYTES + i % BLOCK] == 0;
    }
    assert_true((double)findings.absmax == absmax && findings.saturated == 0 && !findings.has_nonfinite);
    assert_int_equal(findings.flushed, flushed);
    free(back);
    free(unnoted);
    free(wire);
}

static void expect_draws(float (*draw)(seeded *random)) {
    seeded random = {SEED};
    float *const x = new_bytes(sizeof(float) * BLOCKS * BLOCK);
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK; i++) {
        x[i] = draw(&random);
    }
    expect_blocks(x, BLOCKS, &plain_terms);
    expect_blocks(x, BLOCKS, &stochastic_terms);
    free(x);
}

/* ---- Claims --------------------------------------------------------------------------------------------------------
 */

static void usual_blocks(void) {
    expect_draws(gaussian);
    expect_draws(heavy_tailed);
    expect_draws(any_finite);
}

static void errors_are_within_the_bound(void **state) {
    (void)state;
    for_every_isa(usual_blocks);
}

/* From blocks of subnormals to those with the largest float32. */
static void all_exponents(void) {
    float *const x = new_bytes(sizeof(float) * BLOCK * 255);
    for (int round = 0; round < 4; round++) {
        seeded random = {SEED + (uint64_t)round};
        for (size_t i = 0; i < (size_t)BLOCK * 255; i++) {
            x[i] = near_exponent(&random, (uint32_t)(i / BLOCK));
        }
        expect_blocks(x, 255, &plain_terms);
        expect_blocks(x, 255, &stochastic_terms);
    }
    free(x);
}

static void errors_are_within_the_bound_at_every_exponent(void **state) {
    (void)state;
    for_every_isa(all_exponents);
}

/* The absmax is each of the smallest, the largest, and those around the limits of what kernels do. */
static void edges(void) {
    static const uint32_t around[] = {1,          127,        190,        254,        255,
                                      0x00800000, 0x03fe0000, 0x04000000, 0x0f800000, 0x0f000000,
                                      0x3f800000, 0x7f000000, 0x7f7fffc0};
    float *const x = new_bytes(sizeof(float) * BLOCK * 256);
    for (size_t e = 0; e < sizeof around / sizeof around[0]; e++) {
        for (uint32_t b = 0; b < 256; b++) {
            const uint32_t wanted = around[e] + b < 129 ? 1 : around[e] + b - 128;
            const uint32_t most = wanted < 0x7f7fffff ? wanted : 0x7f7fffff;
            for (uint32_t i = 0; i < BLOCK; i++) {
                const double share = (double)((int)i - 127) / 127.5;
                x[b * BLOCK + i] = (float)((double)gs_float_from_bits(most) * (fabs(share) > 1 ? 1 : share));
            }
            x[b * BLOCK + b] = gs_float_from_bits(most | (b % 2) << 31);
        }
        expect_blocks(x, 256, &plain_terms);
        expect_blocks(x, 256, &stochastic_terms);
    }
    free(x);
}

static void the_smallest_and_largest_blocks_are_no_exceptions(void **state) {
    (void)state;
    for_every_isa(edges);
}

/* k + 0.5 codes exactly, with a scale of 1. */
static void ties(void) {
    float x[BLOCK];
    unsigned char wire[BYTES];
    for (int i = 0; i < BLOCK; i++) {
        x[i] = (float)(i - 127) + 0.5f;
    }
    x[255] = 127.0f;
    x[254] = -126.5f;
    gs_codec_int8.encode(wire, x, BLOCK, &plain_terms, NULL);
    for (int i = 0; i < BLOCK; i++) {
        assert_int_equal((int8_t)wire[i], (int)nearbyint((double)x[i]));
    }
}

static void ties_go_to_the_even_code(void **state) {
    (void)state;
    for_every_isa(ties);
}

/* Integers of the scale are exact however they are rounded. */
static void integers(void) {
    for (int key = 0; key < 100; key++) {
        const gs_codec_terms terms = {.is_stochastic = true, .key = (uint64_t)key};
        float x[BLOCK];
        unsigned char wire[BYTES];
        for (int i = 0; i < BLOCK; i++) {
            x[i] = (float)((i < 255 ? i : 254) - 127);
        }
        gs_codec_int8.encode(wire, x, BLOCK, &terms, NULL);
        for (int i = 0; i < BLOCK; i++) {
            assert_int_equal((int8_t)wire[i], (int)x[i]);
        }
    }
}

static void stochastic_rounding_leaves_alone_what_is_a_code(void **state) {
    (void)state;
    for_every_isa(integers);
}

static void zeros(void) {
    float x[2 * BLOCK] = {0};
    unsigned char wire[2 * BYTES];
    static const unsigned char all_zero[2 * BYTES];
    x[3] = -0.0f;
    gs_findings findings = nothing;
    gs_codec_int8.encode(wire, x, sizeof x / sizeof x[0], &plain_terms, &findings);
    assert_memory_equal(wire, all_zero, sizeof wire);
    assert_true(findings.absmax == 0.0f && findings.flushed == 0);
    gs_codec_int8.encode(wire, x, sizeof x / sizeof x[0], &stochastic_terms, NULL);
    assert_memory_equal(wire, all_zero, sizeof wire);
    gs_codec_int8.decode(x, wire, sizeof x / sizeof x[0], &plain_terms);
    assert_int_equal(gs_float_bits(x[3]), 0);
}

static void a_block_of_zeros_has_the_scale_zero(void **state) {
    (void)state;
    for_every_isa(zeros);
}

static void expect_poisoned(float poison, const gs_codec_terms *terms) {
    seeded random = {SEED};
    float *const x = new_bytes(sizeof(float) * BLOCKS * BLOCK);
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK; i++) {
        x[i] = gaussian(&random);
    }
    const size_t place = (size_t)BLOCK * 7 + seeded_below(&random, BLOCK);
    x[place] = poison;
    x[place + BLOCK] = 99.0f;
    x[(size_t)BLOCK * 20] = poison;
    gs_findings findings = nothing;
    float *const back = through(&gs_codec_int8, x, (size_t)BLOCKS * BLOCK, terms, &findings);
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK; i++) {
        const bool is_poisoned = i / BLOCK == 7 || i / BLOCK == 20;
        assert_int_equal(isnan(back[i]) ? gs_float_bits(back[i]) : 0, is_poisoned ? 0x7fc00000 : 0);
    }
    assert_true(findings.has_nonfinite && findings.absmax == 99.0f);
    assert_int_equal(findings.nonfinite_element, place);
    free(back);
    free(x);
}

static void poison(void) {
    expect_poisoned(NAN, &plain_terms);
    expect_poisoned(-INFINITY, &plain_terms);
    expect_poisoned(INFINITY, &stochastic_terms);
}

static void a_block_with_inf_or_nan_decodes_to_nan(void **state) {
    (void)state;
    for_every_isa(poison);
}

static void gates(void) {
    assert_true(nmse_of(&gs_codec_int8, gaussian, 65536, false) <= 1.2e-4);
    assert_true(nmse_of(&gs_codec_int8, gaussian, 65536, true) <= 1.7e-4);
    assert_true(nmse_of(&gs_codec_int8, heavy_tailed, 65536, false) <= 2e-3);
}

static void the_mean_square_error_is_small(void **state) {
    (void)state;
    for_every_isa(gates);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_within_the_bound),
        cmocka_unit_test(errors_are_within_the_bound_at_every_exponent),
        cmocka_unit_test(the_smallest_and_largest_blocks_are_no_exceptions),
        cmocka_unit_test(ties_go_to_the_even_code),
        cmocka_unit_test(stochastic_rounding_leaves_alone_what_is_a_code),
        cmocka_unit_test(a_block_of_zeros_has_the_scale_zero),
        cmocka_unit_test(a_block_with_inf_or_nan_decodes_to_nan),
        cmocka_unit_test(the_mean_square_error_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
