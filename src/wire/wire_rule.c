/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/wire_rule.h"

#include "base/fail.h"
#include "base/options.h"

#include <math.h>
#include <string.h>

static const gs_codec *codec_of(gsync_wire wire) {
    switch (wire) {
    case GSYNC_WIRE_FLOAT16:
        return &gs_codec_float16;
    case GSYNC_WIRE_BFLOAT16:
        return &gs_codec_bfloat16;
    case GSYNC_WIRE_INT8:
        return &gs_codec_int8;
    case GSYNC_WIRE_FLOAT8:
        return &gs_codec_float8;
    case GSYNC_WIRE_NATIVE:
    case GSYNC_WIRE_TOPK:
        break;
    }
    return NULL;
}

const char *gs_wire_name(gsync_wire wire) {
    static const char *const names[] = {"native", "float16", "bfloat16", "int8", "float8", "top-k"};
    const size_t index = (size_t)wire;
    return index < sizeof names / sizeof *names ? names[index] : "?";
}

static gsync_status check(gsync_wire wire, const gsync_wire_options *options) {
    if ((int)wire < GSYNC_WIRE_NATIVE || wire > GSYNC_WIRE_TOPK) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%d is no gsync_wire", (int)wire);
    }
    if ((int)options->feedback < GSYNC_FEEDBACK_AUTO || options->feedback > GSYNC_FEEDBACK_OFF) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_wire_options.feedback is %d, which is not one of its values",
                       (int)options->feedback);
    }
    if (wire == GSYNC_WIRE_NATIVE && (options->feedback == GSYNC_FEEDBACK_ON || options->is_auto != 0)) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gsync_wire_options: the native wire loses nothing: there is no feedback and "
                       "nothing to choose");
    }
    if (options->density != 0.0 && wire != GSYNC_WIRE_TOPK) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_wire_options.density is about GSYNC_WIRE_TOPK");
    }
    if (!(options->density >= 0.0 && options->density <= 1.0)) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_wire_options.density is %g: a share is more than 0 and at most 1",
                       options->density);
    }
    if ((options->is_stochastic != 0 || options->seed != 0) && wire != GSYNC_WIRE_INT8) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_wire_options.is_stochastic and seed are about GSYNC_WIRE_INT8");
    }
    if (options->is_stochastic < 0 || options->is_stochastic > 1 || options->is_auto < 0 || options->is_auto > 1) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_wire_options: is_stochastic and is_auto are 0 or 1");
    }
    return GSYNC_OK;
}

static bool feeds_back(gsync_wire wire, gsync_feedback feedback) {
    return feedback == GSYNC_FEEDBACK_ON || (feedback == GSYNC_FEEDBACK_AUTO && wire == GSYNC_WIRE_TOPK);
}

/* Error feedback knows what two roundings lost, and not what a transport lost while it added up. */
static gsync_status check_sum(gsync_wire wire, const gsync_wire_options *options) {
    if ((int)options->sum < GSYNC_WIRE_SUM_DIRECT || options->sum > GSYNC_WIRE_SUM_FAST) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_wire_options.sum is %d, which is not one of its values",
                       (int)options->sum);
    }
    if (options->sum == GSYNC_WIRE_SUM_DIRECT) {
        return GSYNC_OK;
    }
    if (wire == GSYNC_WIRE_INT8 || wire == GSYNC_WIRE_FLOAT8 || wire == GSYNC_WIRE_TOPK) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gsync_wire_options.sum is GSYNC_WIRE_SUM_FAST, and no transport adds up %s: use "
                       "GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16 or GSYNC_WIRE_NATIVE",
                       gs_wire_name(wire));
    }
    if (feeds_back(wire, options->feedback)) {
        return gs_fail(
            GSYNC_ERR_ARGUMENT,
            "gsync_wire_options.sum is GSYNC_WIRE_SUM_FAST, and nobody knows what such a sum loses: there is "
            "no error feedback of it");
    }
    return GSYNC_OK;
}

/*
 * FLOAT16 has to see gradients before it can scale them. Who adds up an element keeps what the second rounding lost of
 * it, and after the first step the buckets may be planned anew: feedback of that kind, and trials, begin after it.
 */
static bool needs_native_step(const gs_wire_rule *rule) {
    return rule->wire == GSYNC_WIRE_FLOAT16 || rule->is_auto || (rule->has_feedback && rule->codec != NULL);
}

gsync_status gs_wire_rule_make(gs_wire_rule *rule, gsync_wire wire, const gsync_wire_options *from) {
    gsync_wire_options options;
    GS_TRY(gs_options_copy(&options, sizeof options, from, "gsync_wire_options"));
    GS_TRY(check(wire, &options));
    GS_TRY(check_sum(wire, &options));
    const size_t elements_min = wire == GSYNC_WIRE_TOPK ? 16384 : 1024;
    *rule = (gs_wire_rule){
        .wire = wire,
        .codec = codec_of(wire),
        .elements_min = options.elements_min != 0 ? options.elements_min : elements_min,
        .warmup_steps = options.warmup_steps,
        .has_feedback = feeds_back(wire, options.feedback),
        .is_stochastic = options.is_stochastic != 0,
        .is_auto = options.is_auto != 0,
        .sum = options.sum,
        .density = options.density != 0.0 || wire != GSYNC_WIRE_TOPK ? options.density : 0.1,
        .seed = options.seed,
    };
    if (rule->warmup_steps == 0 && needs_native_step(rule)) {
        rule->warmup_steps = 1;
    }
    return GSYNC_OK;
}

bool gs_wire_rule_is_same(const gs_wire_rule *a, const gs_wire_rule *b) {
    return a->wire == b->wire && a->elements_min == b->elements_min && a->warmup_steps == b->warmup_steps &&
           a->has_feedback == b->has_feedback && a->is_stochastic == b->is_stochastic && a->is_auto == b->is_auto &&
           a->sum == b->sum && a->density == b->density && a->seed == b->seed;
}

uint64_t gs_wire_rule_digest(const gs_wire_rule *rule) {
    uint64_t density;
    memcpy(&density, &rule->density, sizeof density);
    const uint64_t words[] = {(uint64_t)rule->wire,
                              rule->elements_min,
                              rule->warmup_steps,
                              rule->has_feedback,
                              rule->is_stochastic,
                              rule->is_auto,
                              (uint64_t)rule->sum,
                              density,
                              rule->seed};
    uint64_t digest = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        digest = (digest ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
        digest ^= digest >> 32;
    }
    return digest;
}

static bool is_own_type(const gs_wire_rule *rule, gsync_dtype dtype) {
    return (rule->wire == GSYNC_WIRE_FLOAT16 && dtype == GSYNC_FLOAT16) ||
           (rule->wire == GSYNC_WIRE_BFLOAT16 && dtype == GSYNC_BFLOAT16);
}

bool gs_wire_rule_covers(const gs_wire_rule *rule, size_t count, gsync_dtype dtype) {
    const bool is_too_long = rule->wire == GSYNC_WIRE_TOPK && count > UINT32_MAX; /* for its indices */
    return rule->wire != GSYNC_WIRE_NATIVE && count >= rule->elements_min && !is_own_type(rule, dtype) && !is_too_long;
}

bool gs_wire_rule_is_fast_as_it_is(const gs_wire_rule *rule, gsync_dtype dtype) {
    const bool is_short = dtype == GSYNC_FLOAT16 || dtype == GSYNC_BFLOAT16;
    return rule->sum == GSYNC_WIRE_SUM_FAST && is_short &&
           (rule->wire == GSYNC_WIRE_NATIVE || is_own_type(rule, dtype));
}

uint32_t gs_wire_rule_block(const gs_wire_rule *rule) {
    return rule->codec != NULL ? (uint32_t)rule->codec->block : 1;
}

size_t gs_wire_rule_kept(const gs_wire_rule *rule, size_t count) {
    /* 0.07 x 100 is a little more than 7, and 7 is meant. */
    const double share = ceil((double)count * rule->density * (1.0 - 1e-12));
    const size_t kept = share < (double)count ? (size_t)share : count;
    return kept > 0 || count == 0 ? kept : 1;
}
