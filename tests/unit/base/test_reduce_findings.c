/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */
#include "base/kernels.h"

#include "../collective/shard_oracle.h"
#include "seeded.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SOURCES_MAX = 64, TARGETS_MAX = 12, COUNT_MAX = 2100 };
#define SEED 20261130

/* ---- Trials --------------------------------------------------------------------------------------------------------
 */

typedef enum inputs {
    BELL,
    HEAVY_TAILS,
    SUBNORMAL,
    HUGE_ONES,
    LARGE_ONES,
    ZEROS,
    STRANGERS,
    EDGES,
    FAINT_ONES,
    LOUD_ONES,
    INPUTS
} inputs;

enum { TRIALS = 2 * 7 * INPUTS * 11 };

typedef struct trial {
    uint64_t seed;
    gsync_dtype dtype;
    inputs inputs;
    gs_rounding rounding;
    int source_count;
    int target_count;
    bool is_in_place;
    size_t first;
    size_t count;
    double divisor;
} trial;

static trial trial_of(int number) {
    static const int source_counts[] = {1, 2, 3, 4, 8, 9, 64};
    static const gs_rounding roundings[] = {
        {GS_ROUND_NOT, 0.0f, 0.0f},      {GS_ROUND_HALF, 1.0f, 0.0f},      {GS_ROUND_HALF, 128.0f, 0.0f},
        {GS_ROUND_HALF, 0x1p-10f, 0.0f}, {GS_ROUND_HALF, 0x1p100f, 0.0f},  {GS_ROUND_HALF, 0x1p-100f, 0.0f},
        {GS_ROUND_HALF, 0x1p120f, 0.0f}, {GS_ROUND_HALF, 0x1p-120f, 0.0f}, {GS_ROUND_BFLOAT, 0.0f, 0.0f}};
    static const float loss_scales[] = {1.0f, 1.0f, 0x1p16f, 0x1p24f, 0x1p70f};
    static const size_t counts[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 1023, 1024, 1025, COUNT_MAX};
    static const double divisors[] = {1, 2, 3, 4, 7, 64, 0.5, 0.1, 16777217.0};
    seeded random = {SEED + (uint64_t)number};
    trial it = {.seed = seeded_next(&random), .dtype = number % 5 == 0 ? GSYNC_FLOAT64 : GSYNC_FLOAT32};
    it.source_count = source_counts[number % 7];
    it.inputs = (inputs)(number / 7 % INPUTS);
    it.is_in_place = number / (7 * INPUTS) % 2 == 0;
    it.rounding = roundings[seeded_below(&random, 9)];
    const size_t counts_to_choose_from = it.source_count > 8 ? 14 : 17;
    it.count = counts[seeded_below(&random, counts_to_choose_from)];
    it.first = seeded_below(&random, 9);
    it.target_count = it.is_in_place ? it.source_count : (int)seeded_below(&random, TARGETS_MAX + 1);
    it.divisor = divisors[seeded_below(&random, 9)];
    const float loss_scale = loss_scales[seeded_below(&random, 5)];
    if (it.rounding.to == GS_ROUND_HALF && it.rounding.scale <= 0x1p126f / loss_scale) {
        it.rounding.result_scale = it.rounding.scale * loss_scale;
        it.divisor *= (double)loss_scale;
    }
    return it;
}

static double uniform(seeded *random) {
    return ldexp((double)(seeded_next(random) >> 11), -52) - 1.0;
}

/* Where rounding to the wire changes what it does. */
static double edge(const trial *it, seeded *random) {
    static const double halves[] = {65504.0, 65519.0, 65520.0, 65536.0, 0x1p-25, 0x1.8p-25, 0x1p-24, 0x1p-14, 2049.0};
    static const double bfloats[] = {0x1.fep127, 0x1.fefffep127, 0x1.ffp127, 0x1.fffffep127, 0x1p-134,
                                     0x1.8p-134, 0x1p-133,       0x1p-126,   257.0};
    const bool is_bfloat = it->rounding.to != GS_ROUND_HALF;
    const double at = (is_bfloat ? bfloats : halves)[seeded_below(random, 9)];
    const double near = (double)nextafterf((float)at, (float)(at * uniform(random) * 2.0));
    return (seeded_below(random, 2) ? at : near) / (is_bfloat ? 1.0 : (double)it->rounding.scale);
}

static double half_scale(const trial *it) {
    return it->rounding.to == GS_ROUND_HALF ? (double)it->rounding.scale : 1.0;
}

static double result_scale(const trial *it) {
    return it->rounding.result_scale != 0.0f ? (double)it->rounding.result_scale : half_scale(it);
}

static double element_of(const trial *it, seeded *random) {
    static const double strangers[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    const bool is_wide = it->dtype == GSYNC_FLOAT64;
    const double sign = seeded_below(random, 2) ? -1.0 : 1.0;
    const double bell = 1e-3 * (uniform(random) + uniform(random) + uniform(random));
    switch (it->inputs) {
    case HEAVY_TAILS:
        return bell * ldexp(1.0, (int)seeded_below(random, 120) - 60);
    case SUBNORMAL:
        return ldexp((double)(seeded_next(random) >> 41), is_wide ? -1074 : -149) * sign;
    case HUGE_ONES:
        return (is_wide ? DBL_MAX : (double)FLT_MAX) * uniform(random);
    case LARGE_ONES: /* of which sums are beyond what can be rounded the fast way */
        return ldexp(uniform(random), 109 + (int)seeded_below(random, 3));
    case ZEROS:
        return seeded_below(random, 8) == 0 ? bell : sign * 0.0;
    case STRANGERS:
        return seeded_below(random, 100) == 0 ? strangers[seeded_below(random, 3)] : bell;
    case EDGES:
        return sign * edge(it, random);
    case FAINT_ONES: /* which are kept, while what is left of a sum of them may not be */
        return ((double)seeded_below(random, 7) - 3.0) * 0x1p-24 / half_scale(it);
    case LOUD_ONES: /* none of which saturates, while a sum of them may */
        return ldexp(uniform(random), 12 + (int)seeded_below(random, 4)) / half_scale(it);
    default:
        return bell;
    }
}

/* ---- What must come out --------------------------------------------------------------------------------------------
 */

typedef struct outcome {
    double result[COUNT_MAX];
    gs_findings findings;
} outcome;

static double rounded(const trial *it, double x, double scale, gs_findings *findings) {
    if (it->dtype == GSYNC_FLOAT64 || it->rounding.to == GS_ROUND_NOT || !isfinite(x)) {
        return x;
    }
    const bool is_half = it->rounding.to == GS_ROUND_HALF;
    const half_format format = is_half ? (half_format){5, 10} : (half_format){8, 7};
    uint16_t bits = half_nearest(format, x * scale);
    if ((bits & 0x7fffu) == half_infinity(format)) {
        findings->saturated++;
        bits--;
    }
    const double value = shard_rounded(GSYNC_FLOAT32, half_value(format, bits) / scale);
    findings->flushed += value == 0.0 && x != 0.0;
    return value;
}

static void note_square_sum(gs_findings *findings, const double *results, size_t count) {
    double sums[16] = {0};
    for (size_t i = 0; i < count; i++) {
        sums[i % 16] += results[i] * results[i];
    }
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            sums[i] += sums[i + width];
        }
    }
    findings->square_sum += sums[0];
}

static void note_nonfinite(const trial *it, gs_findings *findings, void *const *sources, size_t i) {
    findings->has_nonfinite = true;
    findings->nonfinite_element = i;
    findings->nonfinite_source = -1;
    for (int s = it->source_count - 1; s >= 0; s--) {
        if (!isfinite(shard_load(it->dtype, sources[s], it->first + i))) {
            findings->nonfinite_source = s;
        }
    }
}

/* Rounded down to a power of two; subnormal ones are not. */
static void note_absmax(gs_findings *findings, double x) {
    int exponent;
    (void)frexp(x, &exponent);
    const bool is_normal = fabs(x) >= (double)FLT_MIN;
    const float absmax = is_normal ? ldexpf(1.0f, exponent - 1) : (float)fabs(x);
    findings->absmax = absmax > findings->absmax ? absmax : findings->absmax;
}

static void expect_of(outcome *expected, const trial *it, void *const *sources) {
    gs_findings *const findings = &expected->findings;
    for (size_t i = 0; i < it->count; i++) {
        double sum = 0.0;
        for (int s = 0; s < it->source_count; s++) {
            const double x = shard_load(it->dtype, sources[s], it->first + i);
            const double q = rounded(it, x, half_scale(it), findings);
            sum = s == 0 ? q : shard_rounded(it->dtype, sum + q);
            if (it->dtype == GSYNC_FLOAT32 && isfinite(x)) {
                note_absmax(findings, x);
            }
        }
        const double quotient = shard_rounded(it->dtype, sum / it->divisor);
        expected->result[i] = rounded(it, quotient, result_scale(it), findings);
        if (!findings->has_nonfinite && !isfinite(expected->result[i])) {
            note_nonfinite(it, findings, sources, i);
        }
    }
    note_square_sum(findings, expected->result, it->count);
}

/* ---- One trial -----------------------------------------------------------------------------------------------------
 */

typedef struct bench {
    void *sources[SOURCES_MAX];
    void *targets[SOURCES_MAX];
} bench;

/* Buffers end with their last element, so that AddressSanitizer sees the first one behind it. */
static void *buffer_of(const trial *it) {
    void *const buffer = calloc(it->first + it->count + (it->first + it->count == 0), gsync_dtype_size(it->dtype));
    assert_non_null(buffer);
    return buffer;
}

static void open_bench(bench *on, const trial *it) {
    seeded random = {it->seed};
    for (int s = 0; s < it->source_count; s++) {
        on->sources[s] = buffer_of(it);
        for (size_t i = 0; i < it->first + it->count; i++) {
            shard_store(it->dtype, on->sources[s], i, element_of(it, &random));
        }
    }
    for (int t = 0; t < it->target_count; t++) {
        on->targets[t] = it->is_in_place ? on->sources[t] : buffer_of(it);
    }
}

static void close_bench(bench *on, const trial *it) {
    for (int s = 0; s < it->source_count; s++) {
        free(on->sources[s]);
    }
    for (int t = 0; t < it->target_count && !it->is_in_place; t++) {
        free(on->targets[t]);
    }
}

static void reduce(const gs_kernels *kernels, const trial *it, const bench *on, gs_findings *findings) {
    const gs_reduction job = {.sources = (const void *const *)on->sources,
                              .source_count = it->source_count,
                              .targets = on->targets,
                              .target_count = it->target_count,
                              .division = gs_division_by(it->divisor),
                              .first = it->first,
                              .count = it->count,
                              .rounding = it->rounding,
                              .findings = findings};
    (it->dtype == GSYNC_FLOAT64 ? kernels->reduce_f64 : kernels->reduce_f32)(&job);
}

#define FAIL(it, kernels, what, got, wanted)                                                                           \
    fail_msg("%s, trial of seed %llx, %s, inputs %d, rounding %d at %a, %d sources, %zu elements, divisor %a: %s is "  \
             "%a, expected %a",                                                                                        \
             (kernels)->name, (unsigned long long)(it)->seed, (it)->dtype == GSYNC_FLOAT64 ? "float64" : "float32",    \
             (int)(it)->inputs, (int)(it)->rounding.to, (double)(it)->rounding.scale, (it)->source_count, (it)->count, \
             (it)->divisor, what, (double)(got), (double)(wanted))

#define EXPECT(it, kernels, what, got, wanted)                                                                         \
    do {                                                                                                               \
        if ((got) != (wanted)) {                                                                                       \
            FAIL(it, kernels, what, got, wanted);                                                                      \
        }                                                                                                              \
    } while (0)

static void expect_same(const trial *it, const gs_kernels *kernels, const char *what, double got, double wanted) {
    if (isnan(got) != isnan(wanted) || (!isnan(got) && memcmp(&got, &wanted, sizeof got) != 0)) {
        FAIL(it, kernels, what, got, wanted);
    }
}

static void expect_findings(const trial *it, const gs_kernels *kernels, const gs_findings *got, const gs_findings *is) {
    expect_same(it, kernels, "square_sum", got->square_sum, is->square_sum);
    EXPECT(it, kernels, "has_nonfinite", got->has_nonfinite, is->has_nonfinite);
    if (is->has_nonfinite) {
        EXPECT(it, kernels, "nonfinite_element", got->nonfinite_element, is->nonfinite_element);
        EXPECT(it, kernels, "nonfinite_source", got->nonfinite_source, is->nonfinite_source);
    }
    if (it->dtype == GSYNC_FLOAT32 && it->rounding.to != GS_ROUND_NOT) {
        EXPECT(it, kernels, "saturated", got->saturated, is->saturated);
        EXPECT(it, kernels, "flushed", got->flushed, is->flushed);
        EXPECT(it, kernels, "absmax", got->absmax, is->absmax);
    }
}

static void expect_trial(const gs_kernels *kernels, const trial *it, bool asks_for_findings) {
    static const gs_findings before = {.square_sum = 0.25, .absmax = 1e-4f, .saturated = 3, .flushed = 5};
    static outcome expected;
    bench on = {{0}, {0}};
    expected.findings = before;
    gs_findings findings = before;
    open_bench(&on, it);
    expect_of(&expected, it, on.sources);
    reduce(kernels, it, &on, asks_for_findings ? &findings : NULL);
    for (int t = 0; t < it->target_count; t++) {
        for (size_t i = 0; i < it->count; i++) {
            expect_same(it, kernels, "an element", shard_load(it->dtype, on.targets[t], it->first + i),
                        expected.result[i]);
        }
    }
    if (asks_for_findings) {
        expect_findings(it, kernels, &findings, &expected.findings);
    }
    close_bench(&on, it);
}

/* ---- Claims --------------------------------------------------------------------------------------------------------
 */

static void every_isa_rounds_and_finds_what_plain_arithmetic_does(void **state) {
    (void)state;
    for (gs_isa isa = GS_ISA_PLAIN; isa < GS_ISA_COUNT; isa++) {
        const gs_kernels *const kernels = gs_kernels_get(isa);
        for (int number = 0; kernels != NULL && number < TRIALS; number++) {
            const trial it = trial_of(number);
            expect_trial(kernels, &it, true);
        }
    }
}

static void rounding_does_not_depend_on_findings_being_asked_for(void **state) {
    (void)state;
    for (gs_isa isa = GS_ISA_PLAIN; isa < GS_ISA_COUNT; isa++) {
        const gs_kernels *const kernels = gs_kernels_get(isa);
        for (int number = 0; kernels != NULL && number < TRIALS / 4; number++) {
            const trial it = trial_of(number);
            expect_trial(kernels, &it, false);
        }
    }
}

/* Callers go over a gradient in pieces and want the first place of all. */
static void the_first_nonfinite_element_is_kept(void **state) {
    (void)state;
    for (gs_isa isa = GS_ISA_PLAIN; isa < GS_ISA_COUNT; isa++) {
        const gs_kernels *const kernels = gs_kernels_get(isa);
        float x[100] = {0};
        const void *const source = x;
        x[7] = INFINITY;
        gs_findings findings = {.has_nonfinite = true, .nonfinite_source = 5, .nonfinite_element = 99};
        if (kernels != NULL) {
            kernels->reduce_f32(&(gs_reduction){.sources = &source,
                                                .source_count = 1,
                                                .division = gs_division_by(1.0),
                                                .count = 100,
                                                .findings = &findings});
        }
        assert_true(findings.has_nonfinite && findings.nonfinite_source == 5 && findings.nonfinite_element == 99);
    }
}

/* Finite elements of which a square, or a sum of squares, is too large for float64. */
static void a_square_sum_that_overflows_is_no_nonfinite_element(void **state) {
    (void)state;
    for (gs_isa isa = GS_ISA_PLAIN; isa < GS_ISA_COUNT; isa++) {
        const gs_kernels *const kernels = gs_kernels_get(isa);
        double x[64];
        const void *const source = x;
        for (int i = 0; i < 64; i++) {
            x[i] = i % 2 ? 1e200 : -1e308;
        }
        gs_findings findings = {.square_sum = 0.0};
        if (kernels != NULL) {
            kernels->reduce_f64(&(gs_reduction){.sources = &source,
                                                .source_count = 1,
                                                .division = gs_division_by(1.0),
                                                .count = 64,
                                                .findings = &findings});
            assert_true(isinf(findings.square_sum));
        }
        assert_false(findings.has_nonfinite);
    }
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_isa_rounds_and_finds_what_plain_arithmetic_does),
        cmocka_unit_test(rounding_does_not_depend_on_findings_being_asked_for),
        cmocka_unit_test(the_first_nonfinite_element_is_kept),
        cmocka_unit_test(a_square_sum_that_overflows_is_no_nonfinite_element),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
