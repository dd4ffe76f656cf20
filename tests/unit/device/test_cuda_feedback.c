/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* Error feedback on a simulated GPU: what kernels send, and what they owe then, is what the host's codecs and
 * arithmetic make of the same gradients and the same debts. */

#include "cuda_fixture.h"
#include "cuda_layout.h"
#include "simcuda.h"

#include "base/findings.h"
#include "collective/shard.h"

#include <math.h>

#define SEED 20261209
enum { ROUNDS = 10, RANKS = 3 };

static const gsync_dtype singles[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16};

/* ---- wires ---- */

typedef struct wire {
    const gs_codec *codec;
    gs_cuda_codec blocks; /* or PLAIN, and */
    gsync_dtype dtype;
    float scale;
} wire;

static const wire wires[] = {{&gs_codec_float16, GS_CUDA_PLAIN, GSYNC_FLOAT16, 0x1p4f},
                             {&gs_codec_bfloat16, GS_CUDA_PLAIN, GSYNC_BFLOAT16, 1.0f},
                             {&gs_codec_int8, GS_CUDA_INT8, GSYNC_FLOAT32, 1.0f},
                             {&gs_codec_float8, GS_CUDA_FLOAT8, GSYNC_FLOAT32, 1.0f}};
enum { WIRES = sizeof wires / sizeof *wires };

static gs_codec_terms terms_of(const wire *w) {
    return (gs_codec_terms){.scale = w->scale};
}

static size_t device_bytes(const wire *w, const gs_cuda_blocks *blocks, size_t count, size_t parts) {
    return w->blocks != GS_CUDA_PLAIN ? parts * blocks->part_bytes : count * sizeof(uint16_t);
}

/* What the device has, as the codec has it. */
static unsigned char *fetch(const gpu *on, const wire *w, const gs_cuda_blocks *blocks, const void *memory,
                            size_t count, size_t parts) {
    const size_t bytes = device_bytes(w, blocks, count, parts);
    unsigned char *const device = calloc(1, bytes + 1);
    gpu_get(on, device, memory, bytes);
    if (w->blocks == GS_CUDA_PLAIN) {
        return device;
    }
    unsigned char *const got = calloc(2, count + 1);
    lay_out(device, got, count, blocks, false);
    free(device);
    return got;
}

/* ---- gradients that owe something ---- */

/* What is owed of a whole bucket, element by element, with nothing where it has none. */
typedef struct debts {
    gs_cuda_residual host[2 * TERMS_MAX];
    gs_cuda_residual *device;
    float *now;
    float *then; /* on the host: what passes are to make of it */
} debts;

static size_t elements_of(const gs_cuda_term *term) {
    return term->rows * term->columns;
}

static debts debts_random(const gpu *on, const bucket *of, seeded *random) {
    debts made = {.now = calloc(of->count + 1, sizeof(float)), .then = calloc(of->count + 1, sizeof(float))};
    float *const unused = calloc(of->count + 1, sizeof(float));
    fill_values(unused, GSYNC_FLOAT32, of->count, ORDINARY, random);
    memcpy(made.then, unused, of->count * sizeof(float));
    for (size_t i = 0; i < of->term_count; i++) {
        const size_t at = of->terms[i].offset;
        const size_t bytes = elements_of(&of->terms[i]) * sizeof(float);
        gs_cuda_residual *const residual = &made.host[of->terms[i].number];
        fill_values(made.now + at, GSYNC_FLOAT32, elements_of(&of->terms[i]), ORDINARY, random);
        residual->valid = (uint32_t)seeded_below(random, 2);
        residual->sides[residual->valid] = bytes != 0 ? gpu_copy_of(on, made.now + at, bytes) : NULL;
        residual->sides[1 - residual->valid] = bytes != 0 ? gpu_copy_of(on, unused + at, bytes) : NULL;
    }
    made.device = gpu_copy_of(on, made.host, sizeof made.host);
    free(unused);
    return made;
}

static void debts_free(const gpu *on, debts *from) {
    for (size_t i = 0; i < 2 * TERMS_MAX; i++) {
        gs_cuda_free(on->cuda, from->host[i].sides[0]);
        gs_cuda_free(on->cuda, from->host[i].sides[1]);
    }
    gs_cuda_free(on->cuda, from->device);
    free(from->now);
    free(from->then);
}

static void expect_owed(const gpu *on, const bucket *of, const debts *owed, const char *what, uint64_t seed) {
    for (size_t i = 0; i < of->term_count; i++) {
        const size_t count = elements_of(&of->terms[i]);
        const gs_cuda_residual *const residual = &owed->host[of->terms[i].number];
        float *const got = calloc(count + 1, sizeof *got);
        float *const expected = owed->then + of->terms[i].offset;
        gpu_get(on, got, residual->sides[residual->valid], count * sizeof *got);
        expect_same_elements(got, owed->now + of->terms[i].offset, GSYNC_FLOAT32, count, "what was owed", seed);
        gpu_get(on, got, residual->sides[1 - residual->valid], count * sizeof *got);
        make_one_nan(got, GSYNC_FLOAT32, count);
        make_one_nan(expected, GSYNC_FLOAT32, count);
        expect_same_elements(got, expected, GSYNC_FLOAT32, count, what, seed);
        free(got);
    }
}

/* Gradients in another order than their numbers. blocks: each begins with a block. */
static bucket bucket_owing(const gpu *on, gsync_dtype dtype, bool has_blocks, bool has_sums, uint64_t seed) {
    seeded random = {seed};
    bucket made = {.dtype = dtype};
    const size_t terms = 1 + seeded_below(&random, TERMS_MAX - 1);
    for (size_t i = 0; i < terms; i++) {
        const size_t columns = seeded_below(&random, 3) == 0 ? seeded_below(&random, 3000) : seeded_below(&random, 60);
        const bool has_rows = seeded_below(&random, 3) == 0;
        gs_tensor shape = {.rows = has_rows ? 1 + seeded_below(&random, 4) : 1, .columns = columns + has_blocks};
        shape.row_pitch = shape.columns + (has_rows ? seeded_below(&random, 9) : 0);
        made.count += has_blocks ? 0 : seeded_below(&random, 2) * seeded_below(&random, 20);
        bucket_add(on, &made, shape, seeded_below(&random, 2) * seeded_below(&random, 8), ORDINARY,
                   has_sums && seeded_below(&random, 2) == 0, &random);
        made.terms[i].number = (2 * TERMS_MAX - 1) - 2 * i;
        made.count = has_blocks ? (made.count + BLOCK - 1) / BLOCK * BLOCK : made.count;
    }
    bucket_upload_terms(on, &made);
    return made;
}

/* ---- the host's arithmetic ---- */

static void add_owed(float *to, const float *owed, size_t count, float unit) {
    for (size_t k = 0; k < count; k++) {
        const float product = owed[k] * unit;
        to[k] += product;
    }
}

/* Encodes, and returns what that lost. */
static void send(const wire *w, const float *wanted, size_t count, float unit, unsigned char *to, float *lost,
                 gs_findings *found) {
    const gs_codec_terms terms = terms_of(w);
    float *const sent = calloc(count + 1, sizeof *sent);
    w->codec->encode(to, wanted, count, &terms, found);
    w->codec->decode(sent, to, count, &terms);
    for (size_t k = 0; k < count; k++) {
        lost[k] = (wanted[k] - sent[k]) / unit;
    }
    free(sent);
}

static void keep_within_terms(const bucket *of, float *then, const float *lost, size_t first, size_t count) {
    for (size_t i = 0; i < of->term_count; i++) {
        const size_t begin = of->terms[i].offset;
        for (size_t k = begin; k < begin + elements_of(&of->terms[i]); k++) {
            then[k] = k >= first && k < first + count ? lost[k - first] : then[k];
        }
    }
}

static void gather(const bucket *of, double factor, float *to) {
    memset(to, 0, of->count * sizeof *to);
    for (size_t i = 0; i < of->term_count; i++) {
        const gs_host_term term = {
            .tensor = &of->tensors[i], .has_tensor = true, .accumulator = of->accumulators[i], .factor = factor};
        gs_host_gather((unsigned char *)(to + of->terms[i].offset), GSYNC_FLOAT32, &term);
    }
}

static void expect_found(const gs_cuda_findings *got, const gs_findings *expected) {
    assert_int_equal(got->absmax_bits, gs_float_bits(expected->absmax));
    assert_int_equal(got->has_nonfinite, expected->has_nonfinite);
    assert_int_equal(got->saturated, expected->saturated);
    assert_int_equal(got->flushed, expected->flushed);
}

static void expect_same_wire(const unsigned char *got, const unsigned char *expected, const wire *w, size_t count,
                             const char *what, uint64_t seed) {
    for (size_t i = 0; i < gs_codec_bytes(w->codec, count); i++) {
        if (got[i] != expected[i]) {
            fail_msg("seed %llu: %s %s: byte %zu is %#x, expected %#x", (unsigned long long)seed, w->codec->name, what,
                     i, got[i], expected[i]);
        }
    }
}

/* ---- contributions ---- */

static void expect_contributed(const gpu *on, bucket *of, const wire *w, double factor, float unit, uint64_t seed) {
    seeded random = {seed + 1};
    debts owed = debts_random(on, of, &random);
    const bool has_blocks = w->blocks != GS_CUDA_PLAIN;
    const gs_cuda_blocks blocks =
        has_blocks ? gs_cuda_blocks_of(w->blocks, of->count, RANKS) : (gs_cuda_blocks){.codec = GS_CUDA_PLAIN};
    float *const wide = calloc(of->count + 1, sizeof *wide);
    float *const lost = calloc(of->count + 1, sizeof *lost);
    unsigned char *const expected = calloc(2, of->count + 1);
    void *const memory = gpu_new(on, device_bytes(w, &blocks, of->count, RANKS) + 1);
    gs_cuda_notebook *const notebook = gpu_new(on, sizeof *notebook);
    gs_findings wanted = {0};
    gather(of, factor, wide);
    add_owed(wide, owed.now, of->count, unit);
    send(w, wide, of->count, unit, expected, lost, &wanted);
    keep_within_terms(of, owed.then, lost, 0, of->count);
    gs_cuda_pass pass = pass_of(of, w->dtype);
    pass.factor = factor;
    pass.scale = has_blocks ? 0 : w->scale;
    pass.blocks = blocks;
    pass.notebook = notebook;
    pass.feedback = (gs_cuda_feedback){owed.device, owed.host, unit};
    assert_int_equal(gs_cuda_encode(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    unsigned char *const got = fetch(on, w, &blocks, memory, of->count, RANKS);
    expect_same_wire(got, expected, w, of->count, "contribution", seed);
    expect_owed(on, of, &owed, "what is owed of contributions", seed);
    const gs_cuda_findings found = gpu_findings(on, notebook);
    expect_found(&found, &wanted);
    free(got);
    gs_cuda_free(on->cuda, notebook);
    gs_cuda_free(on->cuda, memory);
    free(expected);
    free(lost);
    free(wide);
    debts_free(on, &owed);
}

static void contributions_are_sent_with_what_is_owed(void **state) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < WIRES; i++) {
            for (size_t d = 0; d < 3; d++) {
                const uint64_t seed = SEED + 100 * round + i;
                bucket made = bucket_owing(*state, singles[d], wires[i].blocks != GS_CUDA_PLAIN, round % 2 != 0, seed);
                expect_contributed(*state, &made, &wires[i], round % 3 == 0 ? 1.0 : 0.7, round % 4 == 0 ? 1.0f : 64.0f,
                                   seed);
                bucket_free(*state, &made);
            }
        }
    }
}

/* What is lost of one element beyond the wire's range, and of blocks with NaN. */
static void what_saturates_or_is_infinite_is_owed_as_on_the_host(void **state) {
    static const float odd[] = {1e30f, -3e38f, INFINITY, NAN, 1e-42f};
    for (size_t i = 0; i < WIRES; i++) {
        bucket made = bucket_owing(*state, GSYNC_FLOAT32, wires[i].blocks != GS_CUDA_PLAIN, false, SEED + 7 + i);
        for (size_t t = 0; t < made.term_count; t++) {
            if (made.spans[t] >= 60 * sizeof(float)) {
                memcpy(made.host_blocks[t] + 40, &odd[t % 5], sizeof(float));
                gpu_put(*state, made.blocks[t], made.host_blocks[t], made.spans[t]);
            }
        }
        expect_contributed(*state, &made, &wires[i], 1.0, 1.0f, SEED + 7 + i);
        bucket_free(*state, &made);
    }
}

/* ---- results ---- */

/* Of each rank's part, as the device has it and as floats. */
static void make_parts(const wire *w, const gs_cuda_blocks *blocks, size_t count, unsigned char *device, float *floats,
                       seeded *random) {
    const gs_codec_terms terms = terms_of(w);
    unsigned char *const bytes = calloc(2, count + 1);
    for (size_t rank = 0; rank < RANKS; rank++) {
        float *const own = floats + rank * count;
        fill_values(own, GSYNC_FLOAT32, count, ORDINARY, random);
        w->codec->encode(bytes, own, count, &terms, NULL);
        w->codec->decode(own, bytes, count, &terms);
        if (w->blocks == GS_CUDA_PLAIN) {
            memcpy(device + rank * count * sizeof(uint16_t), bytes, count * sizeof(uint16_t));
        } else {
            lay_out(device + rank * blocks->part_bytes, bytes, count, blocks, true);
        }
    }
    free(bytes);
}

static void add_up(const float *floats, size_t count, double divisor, float *sum) {
    const void *sources[RANKS];
    void *target = sum;
    for (int rank = 0; rank < RANKS; rank++) {
        sources[rank] = floats + (size_t)rank * count;
    }
    gs_shard_reduce(&(gs_shard_job){.sources = sources,
                                    .source_count = RANKS,
                                    .source_dtype = GSYNC_FLOAT32,
                                    .targets = &target,
                                    .target_count = 1,
                                    .target_dtype = GSYNC_FLOAT32,
                                    .op = GSYNC_SUM,
                                    .divisor = divisor,
                                    .count = count});
}

typedef struct shard {
    size_t first;
    size_t count;
    gs_cuda_blocks blocks;
} shard;

/* The part of a rank in the middle. */
static shard shard_of(const wire *w, const bucket *of) {
    const size_t line = w->blocks != GS_CUDA_PLAIN ? BLOCK : 8;
    const size_t part = ((of->count + RANKS - 1) / RANKS + line - 1) / line * line;
    const size_t first = part < of->count ? part : 0;
    shard made = {.first = first, .count = of->count - first < part ? of->count - first : part};
    if (w->blocks != GS_CUDA_PLAIN) {
        made.blocks = gs_cuda_blocks_of(w->blocks, of->count, RANKS);
    }
    return made;
}

static void expect_combined(const gpu *on, const bucket *of, const wire *w, double divisor, uint64_t seed) {
    seeded random = {seed + 2};
    debts owed = debts_random(on, of, &random);
    const shard mine = shard_of(w, of);
    const size_t bytes = device_bytes(w, &mine.blocks, mine.count, 1);
    unsigned char *const parts = calloc(RANKS, bytes + 1);
    float *const floats = calloc(RANKS * mine.count + 1, sizeof *floats);
    float *const sum = calloc(mine.count + 1, sizeof *sum);
    float *const lost = calloc(mine.count + 1, sizeof *lost);
    unsigned char *const expected = calloc(2, mine.count + 1);
    gs_findings wanted = {0};
    make_parts(w, &mine.blocks, mine.count, parts, floats, &random);
    add_up(floats, mine.count, divisor, sum);
    if (divisor != 0) {
        add_owed(sum, owed.now + mine.first, mine.count, 1.0f);
    }
    send(w, sum, mine.count, 1.0f, expected, lost, &wanted);
    if (divisor != 0) {
        keep_within_terms(of, owed.then, lost, mine.first, mine.count);
    }
    void *const memory = gpu_copy_of(on, parts, RANKS * bytes + 1);
    void *const to = gpu_new(on, bytes + 1);
    double *const by = gpu_copy_of(on, &divisor, sizeof divisor);
    const gs_cuda_combination combination = {.parts = memory,
                                             .ranks = RANKS,
                                             .stride = mine.count,
                                             .shard = to,
                                             .count = mine.count,
                                             .wire = w->dtype,
                                             .divisor = by,
                                             .scale = w->blocks != GS_CUDA_PLAIN ? 0 : w->scale,
                                             .blocks = mine.blocks,
                                             .feedback = {owed.device, owed.host, 1.0f},
                                             .terms = of->device_terms,
                                             .host_terms = of->terms,
                                             .term_count = of->term_count,
                                             .first = mine.first};
    assert_int_equal(gs_cuda_combine(on->cuda, &combination, on->stream), GSYNC_OK);
    unsigned char *const got = fetch(on, w, &mine.blocks, to, mine.count, 1);
    expect_same_wire(got, expected, w, mine.count, "result", seed);
    expect_owed(on, of, &owed, "what is owed of results", seed);
    free(got);
    gs_cuda_free(on->cuda, by);
    gs_cuda_free(on->cuda, to);
    gs_cuda_free(on->cuda, memory);
    free(expected);
    free(lost);
    free(sum);
    free(floats);
    free(parts);
    debts_free(on, &owed);
}

static void results_are_rounded_with_what_is_owed_of_this_ranks_part(void **state) {
    static const double divisors[] = {3.0, 4.0, 1.0, 0x1p-3};
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < WIRES; i++) {
            const uint64_t seed = SEED + 1000 + 100 * round + i;
            bucket made = bucket_owing(*state, GSYNC_FLOAT32, wires[i].blocks != GS_CUDA_PLAIN, false, seed);
            expect_combined(*state, &made, &wires[i], divisors[round % 4], seed);
            bucket_free(*state, &made);
        }
    }
}

static void where_nothing_divides_results_are_zero_and_owe_what_they_owed(void **state) {
    for (size_t i = 0; i < WIRES; i++) {
        bucket made = bucket_owing(*state, GSYNC_FLOAT32, wires[i].blocks != GS_CUDA_PLAIN, false, SEED + 50 + i);
        expect_combined(*state, &made, &wires[i], 0.0, SEED + 50 + i);
        bucket_free(*state, &made);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(contributions_are_sent_with_what_is_owed),
        TEST(what_saturates_or_is_infinite_is_owed_as_on_the_host),
        TEST(results_are_rounded_with_what_is_owed_of_this_ranks_part),
        TEST(where_nothing_divides_results_are_zero_and_owe_what_they_owed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
