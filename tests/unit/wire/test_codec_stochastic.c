/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no wrap=gs_kernels_best,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */
/* Not under valgrind, for its time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "codec_trials.h"

enum { BLOCK = 256, BYTES = 260, BLOCKS = 4, COUNT = BLOCKS * BLOCK, ELEMENTS = 1000, DRAWS = 20000 };

/* In each block one element of 127, so that the scale is 1 and the codes are the elements, rounded. */
static void draw_elements(float *x, uint64_t seed) {
    seeded random = {seed};
    for (size_t i = 0; i < COUNT; i++) {
        const double whole = (double)seeded_below(&random, 253) - 126.0;
        const double fraction = 0.01 + 0.98 * (double)(seeded_next(&random) >> 11) * 0x1p-53;
        x[i] = i % BLOCK == BLOCK - 1 ? 127.0f : (float)(whole + fraction);
    }
}

static void encode_with(unsigned char *wire, const float *x, uint64_t key, uint64_t element, bool is_stochastic) {
    const gs_codec_terms terms = {.is_stochastic = is_stochastic, .key = key, .element = element};
    gs_codec_int8.encode(wire, x, COUNT, &terms, NULL);
}

static int code_at(const unsigned char *wire, size_t element) {
    return (int8_t)wire[element / BLOCK * BYTES + element % BLOCK];
}

/* ---- Whether the mean is exact -------------------------------------------------------------------------------------
 */

typedef struct bias {
    double largest_z;
    double chi_square; /* divided by the number of elements: 1 is what chance gives */
} bias;

static double standard_error_of(double mean, double x) {
    const double fraction = x - floor(x);
    return (mean - x) / sqrt(fraction * (1.0 - fraction) / DRAWS);
}

static bias bias_of(bool is_stochastic, uint64_t seed) {
    static int64_t sums[COUNT];
    float x[COUNT];
    unsigned char wire[BLOCKS * BYTES];
    bias found = {0, 0};
    size_t elements = 0;
    draw_elements(x, seed);
    memset(sums, 0, sizeof sums);
    for (uint64_t draw = 0; draw < DRAWS; draw++) {
        encode_with(wire, x, seed + draw, draw * COUNT, is_stochastic);
        for (size_t i = 0; i < COUNT; i++) {
            sums[i] += code_at(wire, i);
        }
    }
    for (size_t i = 0; elements < ELEMENTS; i++) {
        if (i % BLOCK != BLOCK - 1) {
            const double z = standard_error_of((double)sums[i] / DRAWS, (double)x[i]);
            found.largest_z = fabs(z) > found.largest_z ? fabs(z) : found.largest_z;
            found.chi_square += z * z / ELEMENTS;
            elements++;
        }
    }
    return found;
}

static bool is_unbiased(bias found) {
    return found.largest_z < 5.0 && fabs(found.chi_square - 1.0) < 0.134;
}

static void mean(void) {
    const bias found = bias_of(true, SEED);
    if (!is_unbiased(found)) {
        fail_msg("%s: largest z %g, chi square %g", tested_kernels->name, found.largest_z, found.chi_square);
    }
}

static void the_mean_of_stochastic_rounding_is_the_element(void **state) {
    (void)state;
    for_every_isa(mean);
}

static void rounding_to_nearest_fails_the_same_test(void **state) {
    (void)state;
    assert_false(is_unbiased(bias_of(false, SEED)));
}

/* ---- The largest code -----------------------------------------------------------------------------------------------
 */

/* An absmax whose product with the rounded quotient is beyond 127 codes, by about one chance in 100000 of the next. */
static float awkward_absmax(void) {
    const float most = 127.0f * 0x1p24f;
    for (float absmax = 1.0f;; absmax = float_after(absmax)) {
        if (absmax * (most / absmax) > most) {
            return absmax;
        }
    }
}

static void largest_codes(void) {
    const float awkward = awkward_absmax();
    float x[COUNT];
    unsigned char wire[BLOCKS * BYTES];
    for (size_t i = 0; i < COUNT; i++) {
        const float absmax = awkward * (i / BLOCK % 2 == 0 ? 0x1p0f : 0x1p-110f); /* by all means of encoding */
        x[i] = i % 2 == 0 ? absmax : -absmax;
    }
    for (uint64_t key = 0; key < DRAWS / 4; key++) {
        encode_with(wire, x, key, 0, true);
        for (size_t i = 0; i < COUNT; i++) {
            assert_in_range(abs(code_at(wire, i)), 126, 127);
        }
    }
}

static void no_code_is_beyond_127(void **state) {
    (void)state;
    for_every_isa(largest_codes);
}

/* ---- Whether streams are related -----------------------------------------------------------------------------------
 */

enum { PAIRS = 1000 };

/* The correlation of the rounding errors of the same elements. */
static double correlation_of(uint64_t key, uint64_t element, uint64_t other_key, uint64_t other_element) {
    float x[COUNT];
    unsigned char one[BLOCKS * BYTES];
    unsigned char other[BLOCKS * BYTES];
    double products = 0;
    double squares = 0;
    double other_squares = 0;
    for (uint64_t pair = 0; pair < PAIRS; pair++) {
        draw_elements(x, SEED + pair);
        encode_with(one, x, key, element + pair * COUNT, true);
        encode_with(other, x, other_key, other_element + pair * COUNT, true);
        for (size_t i = 0; i < COUNT; i++) {
            const double error = code_at(one, i) - (double)x[i];
            const double other_error = code_at(other, i) - (double)x[i];
            products += error * other_error;
            squares += error * error;
            other_squares += other_error * other_error;
        }
    }
    return products / sqrt(squares * other_squares);
}

static void expect_unrelated(uint64_t key, uint64_t element, uint64_t other_key, uint64_t other_element) {
    const double correlation = correlation_of(key, element, other_key, other_element);
    if (fabs(correlation) >= 5.0 / sqrt((double)PAIRS * COUNT)) {
        fail_msg("key %llx element %llx and key %llx element %llx: correlation %g", (unsigned long long)key,
                 (unsigned long long)element, (unsigned long long)other_key, (unsigned long long)other_element,
                 correlation);
    }
}

static void streams_of_different_keys_and_elements_are_unrelated(void **state) {
    (void)state;
    expect_unrelated(0, 0, 1, 0);
    expect_unrelated(SEED, 0, SEED, 1);
    expect_unrelated(SEED, 0, SEED, 256);
    expect_unrelated(SEED, 0, SEED, UINT64_C(1) << 32);
    expect_unrelated(SEED, 0, SEED + (UINT64_C(1) << 32), 0);
    expect_unrelated(SEED, 0, SEED ^ UINT64_C(1) << 63, 0);
    expect_unrelated(1, UINT64_C(1) << 40, UINT64_C(1) << 40, 1);
}

static void the_test_sees_streams_that_are_related(void **state) {
    (void)state;
    assert_true(correlation_of(SEED, 0, SEED, 0) > 0.99);
}

/* Where the number of an element gets a 33rd bit, within a block as well. */
static void long_streams(void) {
    for (uint64_t before = 0; before <= COUNT; before += 100) {
        const uint64_t element = (UINT64_C(7) << 32) - before;
        float x[COUNT];
        unsigned char whole[BLOCKS * BYTES];
        unsigned char pieces[BLOCKS * BYTES];
        draw_elements(x, SEED);
        encode_with(whole, x, SEED, element, true);
        for (size_t b = 0; b < BLOCKS; b++) {
            const gs_codec_terms terms = {.is_stochastic = true, .key = SEED, .element = element + b * BLOCK};
            gs_codec_int8.encode(pieces + b * BYTES, x + b * BLOCK, BLOCK, &terms, NULL);
        }
        assert_memory_equal(whole, pieces, sizeof whole);
    }
}

static void pieces_of_a_long_stream_give_the_bytes_of_the_whole(void **state) {
    (void)state;
    for_every_isa(long_streams);
}

/* ---- The numbers themselves ----------------------------------------------------------------------------------------
 */

enum { NUMBERS = 1 << 20 };

/* Chi square of equally likely cells, as standard deviations from what chance gives. */
static double deviation_of(const uint32_t *cells, size_t count, double total) {
    double chi_square = 0;
    for (size_t i = 0; i < count; i++) {
        const double expected = total / (double)count;
        chi_square += ((double)cells[i] - expected) * ((double)cells[i] - expected) / expected;
    }
    return fabs(chi_square - (double)(count - 1)) / sqrt(2.0 * (double)(count - 1));
}

static void bytes_and_pairs_of_bytes_are_equally_likely(void **state) {
    (void)state;
    static uint32_t cells[4][256];
    static uint32_t pairs[65536];
    for (uint64_t key = 0; key < 4; key++) {
        const gs_random_stream stream = gs_random_stream_of(key, (uint32_t)key % 2);
        uint32_t before = 0;
        memset(cells, 0, sizeof cells);
        memset(pairs, 0, sizeof pairs);
        for (uint32_t number = 0; number < NUMBERS; number++) {
            const uint32_t bits = gs_random_bits(stream, number);
            for (int byte = 0; byte < 4; byte++) {
                cells[byte][bits >> 8 * byte & 0xff]++;
            }
            pairs[(before >> 24) << 8 | bits >> 24]++;
            before = bits;
        }
        for (int byte = 0; byte < 4; byte++) {
            assert_true(deviation_of(cells[byte], 256, NUMBERS) < 5.0);
        }
        assert_true(deviation_of(pairs, 65536, NUMBERS) < 5.0);
    }
}

/* With half of the key only, another key would bring the numbers in another order. */
static void streams_do_not_share_their_numbers(void **state) {
    (void)state;
    const gs_random_stream one = gs_random_stream_of(1, 0);
    const gs_random_stream other = gs_random_stream_of(2, 0);
    size_t same = 0;
    for (uint32_t number = 0; number < NUMBERS; number++) {
        same += gs_random_bits(one, number) == gs_random_bits(other, number ^ one.first ^ other.first);
    }
    assert_true(same < 3);
}

/* Of `trials` fair coins about half fall on one side. */
static void expect_half(size_t ones, size_t trials, const char *what, int bit, int other) {
    const double z = ((double)ones - (double)trials / 2) / sqrt((double)trials / 4);
    if (fabs(z) > 6.0) {
        fail_msg("%s bit %d changes bit %d in %zu of %zu cases", what, bit, other, ones, trials);
    }
}

static void every_bit_of_key_changes_every_bit_of_a_number_half_the_time(void **state) {
    (void)state;
    enum { TRIALS = 4096 };
    for (int bit = 0; bit < 64; bit++) {
        size_t ones[32] = {0};
        seeded random = {SEED};
        for (size_t i = 0; i < TRIALS; i++) {
            const uint64_t key = seeded_next(&random);
            const uint32_t number = (uint32_t)seeded_next(&random);
            const uint32_t changed = gs_random_bits(gs_random_stream_of(key, 0), number) ^
                                     gs_random_bits(gs_random_stream_of(key ^ UINT64_C(1) << bit, 0), number);
            for (int other = 0; other < 32; other++) {
                ones[other] += changed >> other & 1u;
            }
        }
        for (int other = 0; other < 32; other++) {
            expect_half(ones[other], TRIALS, "key", bit, other);
        }
    }
}

/* Two multiplications leave a trace of which bit it was; a twentieth of one is not seen in a mean. */
static void every_bit_of_the_element_changes_every_bit_of_a_number_about_half_the_time(void **state) {
    (void)state;
    enum { TRIALS = 65536 };
    for (int bit = 0; bit < 32; bit++) {
        size_t ones[32] = {0};
        seeded random = {SEED};
        for (size_t i = 0; i < TRIALS; i++) {
            const gs_random_stream stream = gs_random_stream_of(seeded_next(&random), 0);
            const uint32_t number = (uint32_t)seeded_next(&random);
            const uint32_t changed = gs_random_bits(stream, number) ^ gs_random_bits(stream, number ^ 1u << bit);
            for (int other = 0; other < 32; other++) {
                ones[other] += changed >> other & 1u;
            }
        }
        for (int other = 8; other < 32; other++) { /* the lowest 8 bits are not used */
            assert_in_range(ones[other], TRIALS * 45 / 100, TRIALS * 55 / 100);
        }
    }
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_of_stochastic_rounding_is_the_element),
        cmocka_unit_test(rounding_to_nearest_fails_the_same_test),
        cmocka_unit_test(no_code_is_beyond_127),
        cmocka_unit_test(streams_of_different_keys_and_elements_are_unrelated),
        cmocka_unit_test(the_test_sees_streams_that_are_related),
        cmocka_unit_test(pieces_of_a_long_stream_give_the_bytes_of_the_whole),
        cmocka_unit_test(streams_do_not_share_their_numbers),
        cmocka_unit_test(bytes_and_pairs_of_bytes_are_equally_likely),
        cmocka_unit_test(every_bit_of_key_changes_every_bit_of_a_number_half_the_time),
        cmocka_unit_test(every_bit_of_the_element_changes_every_bit_of_a_number_about_half_the_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
