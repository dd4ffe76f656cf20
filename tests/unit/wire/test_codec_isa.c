/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no wrap=gs_kernels_best,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */
/* Not under valgrind, which does not flush subnormals when asked to. AddressSanitizer sees what lies behind buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/base/kernel_trials.h"

#include "codec_trials.h"

enum { BLOCK = 256, BLOCKS_MAX = 12, NUMBERS = 300 };

static const gs_codec *const all_codecs[] = {&gs_codec_float16, &gs_codec_bfloat16, &gs_codec_int8, &gs_codec_float8};
enum { CODECS = sizeof all_codecs / sizeof all_codecs[0] };

/* What codecs are called with. Some blocks are ordinary, others hold elements of all kinds. */
typedef struct codec_trial {
    const gs_codec *codec;
    gs_codec_terms terms;
    size_t count;
    float *x;
    bool has_findings;
    uint64_t seed;
} codec_trial;

static codec_trial codec_trial_of(int number) {
    static const float scales[] = {1.0f, 0.5f, 1024.0f, 0x1p-30f, 0x1p60f};
    seeded random = {SEED + (uint64_t)number};
    codec_trial it = {.codec = all_codecs[number % CODECS], .seed = random.state};
    const size_t whole = seeded_below(&random, BLOCKS_MAX + 1);
    it.count = it.codec->block == 1 ? seeded_below(&random, BLOCKS_MAX * BLOCK + 1) : whole * BLOCK;
    it.terms.scale = scales[seeded_below(&random, sizeof scales / sizeof scales[0])];
    it.terms.is_stochastic = seeded_below(&random, 2) == 0;
    it.terms.key = seeded_next(&random);
    it.terms.element = seeded_next(&random) >> seeded_below(&random, 64);
    it.has_findings = seeded_below(&random, 2) == 0;
    it.x = new_bytes(it.count * sizeof *it.x);
    for (size_t i = 0; i < it.count; i++) {
        const bool is_wild = (it.seed >> (i / BLOCK % 16) & 1) != 0 && number % 3 != 0;
        it.x[i] = is_wild ? gs_float_from_bits(any_float(&random)) : gaussian(&random) / it.terms.scale;
        it.x[i] = it.codec == &gs_codec_int8 && number % 5 == 0 ? near_exponent(&random, 20) : it.x[i];
    }
    return it;
}

/* All that comes out. */
typedef struct outcome {
    unsigned char *wire;
    float *back;
    float *sum;
    float *rounded;
    gs_findings findings;
    gs_findings round_findings;
} outcome;

static outcome outcome_of(const codec_trial *it, bool flushes) {
    const trial mode_of_trainer = {.flushes = flushes};
    outcome out = {.wire = new_bytes(gs_codec_bytes(it->codec, it->count)),
                   .back = new_bytes(it->count * sizeof(float)),
                   .sum = copy_floats(it->x, it->count),
                   .rounded = copy_floats(it->x, it->count),
                   .findings = {.nonfinite_source = -1},
                   .round_findings = {.nonfinite_source = -1}};
    gs_float_mode mode;
    const unsigned before = enter_mode(&mode_of_trainer);
    gs_float_mode_enter(&mode);
    it->codec->encode(out.wire, it->x, it->count, &it->terms, it->has_findings ? &out.findings : NULL);
    it->codec->decode(out.back, out.wire, it->count, &it->terms);
    it->codec->decode_add(out.sum, out.wire, it->count, &it->terms);
    it->codec->round(out.rounded, it->count, &it->terms, it->has_findings ? &out.round_findings : NULL);
    gs_float_mode_leave(&mode);
    leave_mode(before);
    return out;
}

static void free_outcome(outcome *out) {
    free(out->wire);
    free(out->back);
    free(out->sum);
    free(out->rounded);
}

static void expect_same_bytes(const codec_trial *it, const char *what, const void *got, const void *expected,
                              size_t bytes) {
    if (memcmp(got, expected, bytes) != 0) {
        fail_msg("%s, %s: %s of %zu elements differs, seed %llx", it->codec->name, __wrap_gs_kernels_best()->name, what,
                 it->count, (unsigned long long)it->seed);
    }
}

static void expect_same_findings(const codec_trial *it, const gs_findings *got, const gs_findings *expected) {
    const bool is_same = got->absmax == expected->absmax && got->saturated == expected->saturated &&
                         got->flushed == expected->flushed && got->has_nonfinite == expected->has_nonfinite &&
                         got->nonfinite_element == expected->nonfinite_element && got->nonfinite_source == -1 &&
                         got->square_sum == 0.0;
    if (!is_same) {
        fail_msg("%s, %s: other findings, seed %llx", it->codec->name, __wrap_gs_kernels_best()->name,
                 (unsigned long long)it->seed);
    }
}

static void expect_same_outcome(const codec_trial *it, const outcome *got, const outcome *expected) {
    expect_same_bytes(it, "the wire", got->wire, expected->wire, gs_codec_bytes(it->codec, it->count));
    expect_same_bytes(it, "decoding", got->back, expected->back, it->count * sizeof(float));
    expect_same_bytes(it, "a sum", got->sum, expected->sum, it->count * sizeof(float));
    expect_same_bytes(it, "rounding", got->rounded, expected->rounded, it->count * sizeof(float));
    expect_same_findings(it, &got->findings, &expected->findings);
}

/* ---- Claims --------------------------------------------------------------------------------------------------------
 */

static void same_as_plain(void) {
    const gs_kernels *const kernels = tested_kernels;
    for (int number = 0; number < NUMBERS; number++) {
        codec_trial it = codec_trial_of(number);
        tested_kernels = gs_kernels_get(GS_ISA_PLAIN);
        outcome expected = outcome_of(&it, false);
        tested_kernels = kernels;
        outcome got = outcome_of(&it, false);
        expect_same_outcome(&it, &got, &expected);
        free_outcome(&got);
        free_outcome(&expected);
        free(it.x);
    }
}

static void every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    for_every_isa(same_as_plain);
}

static void same_when_flushing(void) {
    for (int number = 0; number < NUMBERS; number++) {
        codec_trial it = codec_trial_of(number);
        outcome expected = outcome_of(&it, false);
        outcome got = outcome_of(&it, true);
        expect_same_outcome(&it, &got, &expected);
        free_outcome(&got);
        free_outcome(&expected);
        free(it.x);
    }
}

static void trainers_that_flush_subnormals_get_the_same_bits(void **state) {
    (void)state;
    if (!CAN_FLUSH) {
        skip();
    }
    for_every_isa(same_when_flushing);
}

static void rounding(void) {
    for (int number = 0; number < NUMBERS; number++) {
        codec_trial it = codec_trial_of(number);
        outcome got = outcome_of(&it, false);
        expect_same_bytes(&it, "rounding", got.rounded, got.back, it.count * sizeof(float));
        expect_same_findings(&it, &got.round_findings, &got.findings);
        free_outcome(&got);
        free(it.x);
    }
}

static void round_is_decode_after_encode(void **state) {
    (void)state;
    for_every_isa(rounding);
}

/* One float32 addition, and the one NaN. */
static void adding(void) {
    for (int number = 0; number < NUMBERS; number++) {
        codec_trial it = codec_trial_of(number);
        outcome got = outcome_of(&it, false);
        for (size_t i = 0; i < it.count; i++) {
            const double exact = (double)it.x[i] + (double)got.back[i];
            const float sum = isnan(exact) ? gs_float_from_bits(0x7fc00000u) : (float)exact;
            expect_same_float("a sum", i, it.x[i], got.sum[i], sum);
        }
        free_outcome(&got);
        free(it.x);
    }
}

static void decode_add_adds_once(void **state) {
    (void)state;
    for_every_isa(adding);
}

/* As if zeros followed; nothing behind the last element is touched, which AddressSanitizer would see. */
static void short_blocks(void) {
    const gs_codec *const blocked[] = {&gs_codec_int8, &gs_codec_float8};
    seeded random = {SEED};
    for (size_t count = 0; count < 3 * BLOCK; count += 1 + seeded_below(&random, 7)) {
        const gs_codec *const codec = blocked[count % 2];
        const gs_codec_terms terms = {.scale = 1.0f, .is_stochastic = count % 3 == 0, .key = count};
        float padded[3 * BLOCK] = {0};
        for (size_t i = 0; i < count; i++) {
            padded[i] = gaussian(&random);
        }
        float *const x = copy_floats(padded, count);
        gs_findings findings = {.nonfinite_source = -1};
        gs_findings expected = {.nonfinite_source = -1};
        float *const back = through(codec, padded, sizeof padded / sizeof padded[0], &terms, &expected);
        codec->round(x, count, &terms, &findings);
        assert_memory_equal(x, back, count * sizeof(float));
        assert_true(findings.absmax == expected.absmax && findings.flushed == expected.flushed);
        free(back);
        free(x);
    }
}

static void round_takes_a_short_last_block(void **state) {
    (void)state;
    for_every_isa(short_blocks);
}

/* In one call, or in several of whole blocks that count the elements on. */
static void pieces(void) {
    for (int number = 0; number < NUMBERS; number++) {
        codec_trial it = codec_trial_of(number);
        const size_t part = it.codec->block * (1 + (size_t)number % 3);
        unsigned char *const wire = new_bytes(gs_codec_bytes(it.codec, it.count));
        outcome expected = outcome_of(&it, false);
        for (size_t k = 0; k < it.count; k += part) {
            gs_codec_terms terms = it.terms;
            terms.element += k;
            it.codec->encode(wire + gs_codec_bytes(it.codec, k), it.x + k, it.count - k < part ? it.count - k : part,
                             &terms, NULL);
        }
        expect_same_bytes(&it, "a wire in pieces", wire, expected.wire, gs_codec_bytes(it.codec, it.count));
        free_outcome(&expected);
        free(wire);
        free(it.x);
    }
}

static void pieces_give_the_bytes_of_the_whole(void **state) {
    (void)state;
    for_every_isa(pieces);
}

/* A reduction that rounds a source, as ranks that share memory do it. */
static void reductions(void) {
    for (int number = 0; number < NUMBERS; number++) {
        codec_trial it = codec_trial_of(number);
        if (it.codec->block == 1) {
            outcome expected = outcome_of(&it, false);
            float *const target = new_bytes(it.count * sizeof *target);
            const void *const source = it.x;
            void *const to = target;
            const gs_reduction reduction = {
                .sources = &source,
                .source_count = 1,
                .targets = &to,
                .target_count = 1,
                .division = gs_division_by(1.0),
                .count = it.count,
                .rounding = {.to = it.codec == &gs_codec_float16 ? GS_ROUND_HALF : GS_ROUND_BFLOAT,
                             .scale = it.terms.scale}};
            tested_kernels->reduce_f32(&reduction);
            expect_same_bytes(&it, "a reduction", target, expected.rounded, it.count * sizeof(float));
            free(target);
            free_outcome(&expected);
        }
        free(it.x);
    }
}

static void a_reduction_rounds_as_the_codec_does(void **state) {
    (void)state;
    for_every_isa(reductions);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(trainers_that_flush_subnormals_get_the_same_bits),
        cmocka_unit_test(round_is_decode_after_encode),
        cmocka_unit_test(decode_add_adds_once),
        cmocka_unit_test(round_takes_a_short_last_block),
        cmocka_unit_test(pieces_give_the_bytes_of_the_whole),
        cmocka_unit_test(a_reduction_rounds_as_the_codec_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
