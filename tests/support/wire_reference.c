/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 };

/* Float32 arithmetic by way of float64, whose one rounding is float32's: 53 >= 2 * 24 + 2. */
static float sum_of(float a, float b) {
    return (float)((double)a + (double)b);
}

static float product_of(float a, float b) {
    return (float)((double)a * (double)b);
}

static float quotient_of(float a, double b) {
    return (float)((double)a / b);
}

/* ---- Codecs, element by element ------------------------------------------------------------------------------- */

static float half_rounded(float x, float scale) {
    const double scaled = (double)x * (double)scale;
    if (!isfinite(x)) {
        return isnan(x) ? NAN : x;
    }
    if (fabs(scaled) >= 65520.0) {
        return (float)copysign(65504.0 / (double)scale, (double)x);
    }
    const uint16_t bits = oracle_narrowed(GSYNC_FLOAT16, (float)scaled);
    return (float)(ranks_load(&bits, GSYNC_FLOAT16, 0) / (double)scale);
}

static float bfloat_rounded(float x) {
    const uint16_t bits = oracle_narrowed(GSYNC_BFLOAT16, x);
    const double rounded = ranks_load(&bits, GSYNC_BFLOAT16, 0);
    return (float)(isfinite(x) && isinf(rounded) ? copysign(0x1.fep127, (double)x) : rounded);
}

static float absmax_of(const float *x, size_t count) {
    float most = 0;
    for (size_t k = 0; k < count; k++) {
        const float magnitude = fabsf(x[k]);
        most = isnan(magnitude) ? INFINITY : fmaxf(most, magnitude);
    }
    return most;
}

static void fill(float *x, size_t count, float value) {
    for (size_t k = 0; k < count; k++) {
        x[k] = value;
    }
}

typedef struct int8_terms {
    double scale;
    double factor; /* as float32 has it, but with any exponent */
} int8_terms;

/* To 24 bits, however small or large. */
static double to_24_bits(double x) {
    int exponent;
    const double fraction = frexp(x, &exponent);
    return ldexp(rint(ldexp(fraction, 24)), exponent - 24);
}

static int8_terms int8_terms_of(float absmax) {
    int8_terms terms = {(double)quotient_of(absmax, 127.0), to_24_bits(127.0 / (double)absmax)};
    if (terms.scale * 127.0 > (double)FLT_MAX) {
        terms.scale = (double)nextafterf((float)terms.scale, 0.0f);
    }
    if (absmax < 127.0f * FLT_MIN) {
        terms.scale = ceil((double)absmax * 0x1p149 / 127.0) * 0x1p-149;
        terms.factor = to_24_bits(1.0 / terms.scale);
    }
    return terms;
}

static void int8_round_block(float *x, size_t count) {
    const float absmax = absmax_of(x, count);
    if (absmax == 0 || isinf(absmax)) {
        fill(x, count, absmax == 0 ? 0.0f : NAN);
        return;
    }
    const int8_terms terms = int8_terms_of(absmax);
    for (size_t k = 0; k < count; k++) {
        const double code = rint(to_24_bits((double)x[k] * terms.factor)) + 0.0;
        x[k] = (float)(code * terms.scale) + 0.0f;
    }
}

/* In units of 2^-24 the scaled element is cut to an integer; with a random one below 2^24 added, it is rounded down. */
static void int8_round_at_random(float *x, size_t count, wire_random random, uint64_t key, uint64_t number) {
    const float absmax = absmax_of(x, count);
    if (absmax == 0 || isinf(absmax)) {
        fill(x, count, absmax == 0 ? 0.0f : NAN);
        return;
    }
    const int8_terms terms = int8_terms_of(absmax);
    double factor = terms.factor * 0x1p24;
    if (to_24_bits((double)absmax * factor) > 127.0 * 0x1p24) {
        int exponent;
        (void)frexp(factor, &exponent);
        factor -= ldexp(1.0, exponent - 24);
    }
    for (size_t k = 0; k < count; k++) {
        const double fixed = trunc(to_24_bits((double)x[k] * factor));
        const double code = floor((fixed + (double)random(key, number + k)) * 0x1p-24);
        x[k] = (float)(code * terms.scale) + 0.0f;
    }
}

static double float8_rounded(double x) {
    int exponent;
    (void)frexp(x, &exponent);
    const int unit = exponent - 1 < -6 ? -9 : exponent - 1 - 3;
    return copysign(ldexp(rint(ldexp(fabs(x), -unit)), unit), x);
}

static void float8_round_block(float *x, size_t count) {
    enum { EXPONENT_MAX = 247 };
    const float absmax = absmax_of(x, count);
    if (isinf(absmax)) {
        fill(x, count, NAN);
        return;
    }
    int exponent = 0;
    while (exponent < EXPONENT_MAX && (double)absmax > ldexp(448.0, exponent - 127)) {
        exponent++;
    }
    for (size_t k = 0; k < count; k++) {
        double scaled = ldexp((double)x[k], 127 - exponent);
        if (exponent == EXPONENT_MAX && fabs(scaled) > 240.0) {
            scaled = copysign(240.0, scaled);
        }
        x[k] = (float)ldexp(float8_rounded(scaled), exponent - 127);
    }
}

void wire_round(gsync_wire wire, float scale, float *x, size_t count) {
    for (size_t k = 0; k < count; k += BLOCK) {
        const size_t length = count - k < BLOCK ? count - k : BLOCK;
        if (wire == GSYNC_WIRE_INT8) {
            int8_round_block(x + k, length);
        } else if (wire == GSYNC_WIRE_FLOAT8) {
            float8_round_block(x + k, length);
        }
    }
    for (size_t k = 0; k < count && (wire == GSYNC_WIRE_FLOAT16 || wire == GSYNC_WIRE_BFLOAT16); k++) {
        x[k] = wire == GSYNC_WIRE_FLOAT16 ? half_rounded(x[k], scale) : bfloat_rounded(x[k]);
    }
}

float wire_half_scale(double absmax, int world) {
    /* 2^11 for a power of two of ranks at least as large as the world; no further than float16's factors go. */
    int magnitude;
    int ranks = 1;
    (void)frexp(absmax, &magnitude);
    while ((1 << ranks) <= world) {
        ranks++;
    }
    const int exponent = 11 - magnitude - ranks;
    return ldexpf(1.0f, exponent > 126 ? 126 : (exponent < -112 ? -112 : exponent));
}

/* ---- The model -------------------------------------------------------------------------------------------------- */

wire_reference *wire_reference_new(ranks_context *ctx, int world, int ranks_per_host) {
    wire_reference *reference = ranks_memory(ctx, sizeof *reference);
    *reference = (wire_reference){
        .ctx = ctx, .world = world, .ranks_per_host = ranks_per_host, .divisor = world, .loss_scale = 1.0};
    return reference;
}

static bool has_feedback(const wire_gradient *gradient) {
    const gsync_feedback feedback = gradient->options.feedback;
    return feedback == GSYNC_FEEDBACK_ON || (feedback == GSYNC_FEEDBACK_AUTO && gradient->wire == GSYNC_WIRE_TOPK);
}

static float *zeros(ranks_context *ctx, size_t count) {
    float *memory = ranks_memory(ctx, (count + 1) * sizeof *memory);
    fill(memory, count, 0.0f);
    return memory;
}

void wire_reference_add(wire_reference *reference, size_t count, gsync_dtype dtype, gsync_wire wire,
                        const gsync_wire_options *options) {
    static const gsync_wire_options defaults = GSYNC_WIRE_OPTIONS_INIT;
    wire_gradient *gradient = &reference->gradients[reference->gradient_count++];
    *gradient =
        (wire_gradient){.count = count, .dtype = dtype, .wire = wire, .options = options != NULL ? *options : defaults};
    const size_t elements_min = wire == GSYNC_WIRE_TOPK ? 16384 : 1024;
    const bool is_own = (wire == GSYNC_WIRE_FLOAT16 && dtype == GSYNC_FLOAT16) ||
                        (wire == GSYNC_WIRE_BFLOAT16 && dtype == GSYNC_BFLOAT16);
    if (count < (gradient->options.elements_min != 0 ? gradient->options.elements_min : elements_min) || is_own ||
        reference->world == 1) {
        gradient->wire = GSYNC_WIRE_NATIVE;
    }
    if (has_feedback(gradient)) {
        gradient->owed = ranks_memory(reference->ctx, (size_t)reference->world * sizeof *gradient->owed);
        gradient->owed_next = ranks_memory(reference->ctx, (size_t)reference->world * sizeof *gradient->owed_next);
        for (int rank = 0; rank < reference->world; rank++) {
            gradient->owed[rank] = zeros(reference->ctx, count);
            gradient->owed_next[rank] = zeros(reference->ctx, count);
        }
        gradient->owed_of_result = zeros(reference->ctx, count);
        gradient->owed_of_result_next = zeros(reference->ctx, count);
    }
}

bool wire_reference_is_narrow(const wire_reference *reference, size_t index) {
    const wire_gradient *gradient = &reference->gradients[index];
    const bool waits = gradient->wire == GSYNC_WIRE_FLOAT16 || (gradient->owed && gradient->wire != GSYNC_WIRE_TOPK);
    const uint32_t warmup = gradient->options.warmup_steps != 0 || !waits ? gradient->options.warmup_steps : 1;
    return gradient->wire != GSYNC_WIRE_NATIVE && reference->step + 1 > warmup &&
           (gradient->wire != GSYNC_WIRE_FLOAT16 || reference->half_scale != 0.0f);
}

static void note_magnitude(wire_reference *reference, const wire_gradient *gradient, const float *x) {
    for (size_t k = 0; k < gradient->count && gradient->wire == GSYNC_WIRE_FLOAT16; k++) {
        reference->absmax = isfinite(x[k]) ? fmaxf(reference->absmax, fabsf(x[k])) : reference->absmax;
    }
}

/* x becomes what comes out of the wire: what is owed is added first, what is lost is owed. sender -1: of results. */
static void pass(wire_reference *reference, size_t index, float *x, const float *owed, float *owed_next, float unit,
                 int sender) {
    const wire_gradient *gradient = &reference->gradients[index];
    const size_t count = gradient->count;
    float *wanted = ranks_memory(reference->ctx, (count + 1) * sizeof *wanted);
    for (size_t k = 0; k < count; k++) {
        x[k] = owed != NULL ? sum_of(x[k], product_of(owed[k], unit)) : x[k];
        wanted[k] = x[k];
    }
    if (sender >= 0) {
        note_magnitude(reference, gradient, x);
    }
    if (gradient->options.is_stochastic && sender >= 0) {
        const uint64_t key = reference->key(gradient->options.seed, reference->step + 1, sender, (uint32_t)index);
        for (size_t k = 0; k < count; k += BLOCK) {
            int8_round_at_random(x + k, count - k < BLOCK ? count - k : BLOCK, reference->random, key, k);
        }
    } else {
        /* Contributions are as large as the loss scale makes them, and results were divided by it. */
        const double shrinkage = ldexp(1.0, ilogb(reference->divisor / reference->world));
        const double scale = (double)reference->half_scale * (sender >= 0 ? 1.0 / reference->loss_scale : shrinkage);
        wire_round(gradient->wire, (float)fmax(fmin(scale, 0x1p126), 0x1p-112), x, count);
    }
    for (size_t k = 0; k < count && owed_next != NULL; k++) {
        owed_next[k] = quotient_of(sum_of(wanted[k], -x[k]), (double)unit);
    }
    ranks_memory_free(reference->ctx, wanted);
}

static void look(wire_reference *reference, const float *x, size_t count) {
    for (size_t k = 0; k < count; k++) {
        reference->found_inf = reference->found_inf || !isfinite(x[k]);
    }
}

/* The sum of each host's ranks, on one host of each rank, is rounded and added. */
static void add_up(wire_reference *reference, size_t index, const float *const *inputs, bool is_narrow, float *total) {
    const wire_gradient *gradient = &reference->gradients[index];
    const int per_host = reference->ranks_per_host != 0 ? reference->ranks_per_host : 1;
    float *part = zeros(reference->ctx, gradient->count);
    bool has_total = false;
    for (int first = 0; first < reference->world; first += per_host) {
        const int end = first + per_host < reference->world ? first + per_host : reference->world;
        bool has_part = false;
        for (int rank = first; rank < end; rank++) {
            const float *x = inputs[index * (size_t)reference->world + (size_t)rank];
            for (size_t k = 0; k < gradient->count && x != NULL; k++) {
                part[k] = has_part ? sum_of(part[k], x[k]) : x[k];
            }
            has_part = has_part || x != NULL;
        }
        if (!has_part && reference->ranks_per_host == 0) {
            continue;
        }
        if (!has_part) {
            fill(part, gradient->count, 0.0f);
        }
        look(reference, part, gradient->count);
        if (is_narrow) {
            float **owed = has_part ? gradient->owed : NULL;
            pass(reference, index, part, owed != NULL ? owed[first] : NULL,
                 owed != NULL ? gradient->owed_next[first] : NULL, (float)reference->loss_scale, first);
        } else {
            note_magnitude(reference, gradient, part);
        }
        for (size_t k = 0; k < gradient->count; k++) {
            total[k] = has_total ? sum_of(total[k], part[k]) : part[k];
        }
        has_total = true;
    }
    ranks_memory_free(reference->ctx, part);
}

static size_t kept_of(const wire_gradient *gradient) {
    const double density = gradient->options.density != 0.0 ? gradient->options.density : 0.1;
    size_t kept = 1;
    while (kept < gradient->count && (double)kept < (double)gradient->count * density * (1.0 - 1e-12)) {
        kept++;
    }
    return kept;
}

typedef struct candidate {
    uint32_t magnitude; /* its bits, which ascend with it, NaN last */
    size_t at;
} candidate;

static int compare_candidates(const void *left, const void *right) {
    const candidate *a = left;
    const candidate *b = right;
    if (a->magnitude != b->magnitude) {
        return a->magnitude > b->magnitude ? -1 : 1;
    }
    return a->at < b->at ? -1 : a->at > b->at;
}

/* From the largest magnitude to the least, the first of equals first. */
static candidate *sorted(ranks_context *ctx, const float *x, size_t count) {
    candidate *all = ranks_memory(ctx, (count + 1) * sizeof *all);
    for (size_t k = 0; k < count; k++) {
        uint32_t bits;
        memcpy(&bits, &x[k], sizeof bits);
        all[k] = (candidate){bits & 0x7fffffffu, k};
    }
    qsort(all, count, sizeof *all, compare_candidates);
    return all;
}

static void add_largest(wire_reference *reference, size_t index, int rank, const float *x, float *total) {
    const wire_gradient *gradient = &reference->gradients[index];
    const float unit = (float)reference->loss_scale;
    float *rest = zeros(reference->ctx, gradient->count);
    for (size_t k = 0; k < gradient->count; k++) {
        rest[k] = gradient->owed != NULL ? sum_of(x[k], product_of(gradient->owed[rank][k], unit)) : x[k];
    }
    look(reference, rest, gradient->count);
    candidate *order = sorted(reference->ctx, rest, gradient->count);
    for (size_t n = 0; n < kept_of(gradient); n++) {
        total[order[n].at] = sum_of(total[order[n].at], rest[order[n].at]);
        rest[order[n].at] = 0.0f;
    }
    for (size_t k = 0; k < gradient->count && gradient->owed != NULL; k++) {
        gradient->owed_next[rank][k] = quotient_of(rest[k], (double)unit);
    }
    ranks_memory_free(reference->ctx, order);
    ranks_memory_free(reference->ctx, rest);
}

static void keep_what_is_owed(wire_gradient *gradient, int world) {
    for (int rank = 0; rank < world && gradient->owed != NULL; rank++) {
        memcpy(gradient->owed_next[rank], gradient->owed[rank], gradient->count * sizeof(float));
    }
    if (gradient->owed_of_result != NULL) {
        memcpy(gradient->owed_of_result_next, gradient->owed_of_result, gradient->count * sizeof(float));
    }
}

static void store_result(wire_reference *reference, const wire_gradient *gradient, const float *total, void *result) {
    for (size_t k = 0; k < gradient->count; k++) {
        if (gradient->dtype == GSYNC_FLOAT32) {
            ((float *)result)[k] = total[k];
        } else {
            ((uint16_t *)result)[k] = oracle_narrowed(gradient->dtype, total[k]);
        }
        reference->found_inf = reference->found_inf || !isfinite(ranks_load(result, gradient->dtype, k));
    }
}

static void reduce(wire_reference *reference, size_t index, const float *const *inputs, void *result) {
    wire_gradient *gradient = &reference->gradients[index];
    const bool is_narrow = wire_reference_is_narrow(reference, index);
    const double divisor = reference->divisor * reference->loss_scale;
    float *total = zeros(reference->ctx, gradient->count);
    keep_what_is_owed(gradient, reference->world);
    if (is_narrow && gradient->wire == GSYNC_WIRE_TOPK) {
        for (int rank = 0; rank < reference->world; rank++) {
            const float *x = inputs[index * (size_t)reference->world + (size_t)rank];
            if (x != NULL) {
                add_largest(reference, index, rank, x, total);
            }
        }
    } else {
        add_up(reference, index, inputs, is_narrow, total);
    }
    for (size_t k = 0; k < gradient->count; k++) {
        total[k] = divisor == 0.0 ? 0.0f : quotient_of(total[k], divisor);
    }
    if (is_narrow && gradient->wire != GSYNC_WIRE_TOPK) {
        pass(reference, index, total, gradient->owed_of_result, gradient->owed_of_result_next, 1.0f, -1);
    }
    store_result(reference, gradient, total, result);
    ranks_memory_free(reference->ctx, total);
}

static void exchange(float **a, float **b) {
    float *const before = *a;
    *a = *b;
    *b = before;
}

/* Only a step that counts changes what is owed, and the scale. */
static void settle(wire_reference *reference) {
    if (reference->found_inf) {
        return;
    }
    for (size_t i = 0; i < reference->gradient_count; i++) {
        wire_gradient *gradient = &reference->gradients[i];
        for (int rank = 0; rank < reference->world && gradient->owed != NULL; rank++) {
            exchange(&gradient->owed[rank], &gradient->owed_next[rank]);
        }
        exchange(&gradient->owed_of_result, &gradient->owed_of_result_next);
    }
    if (reference->absmax > 0.0f) {
        reference->half_scale = wire_half_scale((double)reference->absmax / reference->loss_scale, reference->world);
    }
}

void wire_reference_step(wire_reference *reference, const float *const *inputs, void *const *results) {
    reference->found_inf = false;
    reference->absmax = 0.0f;
    for (size_t i = 0; i < reference->gradient_count; i++) {
        if (reference->gradients[i].count != 0) {
            reduce(reference, i, inputs, results[i]);
        }
    }
    settle(reference);
    reference->step++;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

static double uniform(ranks_random *random) {
    return ((double)(ranks_random_next(random) >> 11) + 0.5) * 0x1p-53;
}

static double gaussian(ranks_random *random) {
    const double radius = sqrt(-2.0 * log(uniform(random)));
    return radius * cos(6.283185307179586 * uniform(random));
}

static float mixed_value(ranks_random *random) {
    const uint64_t bits = ranks_random_next(random);
    const double sign = (bits & 1u) != 0 ? -1.0 : 1.0;
    switch ((bits >> 1) & 15u) {
    case 0:
        return (float)(sign * 0.0);
    case 1:
        return (float)(sign * ldexp((double)(bits >> 40), -149));
    case 2:
    case 3:
        return (float)(sign * 0.75);
    default:
        return (float)(sign * ldexp(1.0 + (double)(bits >> 32) * 0x1p-32, (int)((bits >> 5) % 20) - 12));
    }
}

void wire_values(wire_values_kind kind, uint64_t key, int rank, float *to, size_t count) {
    ranks_random random = ranks_random_from(key, (uint64_t)rank);
    for (size_t k = 0; k < count; k++) {
        const double normal = kind == WIRE_MIXED || kind == WIRE_ZERO ? 0.0 : gaussian(&random);
        switch (kind) {
        case WIRE_GAUSSIAN:
            to[k] = (float)normal;
            break;
        case WIRE_HEAVY_TAILED:
            to[k] = (float)(normal * normal * normal * exp(2.0 * gaussian(&random)));
            break;
        case WIRE_CONSTANT:
            to[k] = 0.37f;
            break;
        case WIRE_ZERO:
            to[k] = 0.0f;
            break;
        case WIRE_DENORMAL:
            to[k] = (float)(normal * 0x1p-135);
            break;
        case WIRE_HUGE:
            to[k] = (float)(normal * 0x1p110);
            break;
        case WIRE_MIXED:
            to[k] = mixed_value(&random);
            break;
        }
    }
}
