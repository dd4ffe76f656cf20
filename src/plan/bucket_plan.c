/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/bucket_plan.h"

#include "base/fail.h"
#include "base/memory.h"

#include <assert.h>
#include <string.h>

/* Indexed by gsync_dtype, whose numbers start at 1. */
#define DTYPE_END (GSYNC_UINT8 + 1)

/* The bucket of one dtype and wire that still takes gradients. */
typedef struct open_bucket {
    uint32_t number; /* in order of opening; GS_NO_BUCKET when none is open */
    size_t bytes;
    size_t bytes_max; /* the cap in force for this dtype */
} open_bucket;

static uint32_t *closing_positions(const gs_bucket_plan *plan) {
    return plan->scratch;
}

static uint32_t *sort_space(const gs_bucket_plan *plan) {
    return plan->scratch + plan->gradient_count;
}

static uint32_t *new_numbers(const gs_bucket_plan *plan) {
    return plan->scratch + 2 * plan->gradient_count;
}

static size_t add_saturated(size_t a, size_t b) {
    return a <= SIZE_MAX - b ? a + b : SIZE_MAX;
}

static size_t multiply_saturated(size_t a, size_t b) {
    return b == 0 || a <= SIZE_MAX / b ? a * b : SIZE_MAX;
}

static size_t missing_to_block(size_t count, uint32_t block) {
    return block < 2 || count % block == 0 ? 0 : block - count % block;
}

gsync_status gs_bucket_plan_init(gs_bucket_plan *plan, size_t gradient_count) {
    memset(plan, 0, sizeof *plan);
    if (gradient_count >= GS_NO_BUCKET) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%zu gradients: a plan holds fewer than %u", gradient_count, GS_NO_BUCKET);
    }
    /* Room for one gradient even where there is none: offsets into NULL would be undefined. */
    const size_t n = gradient_count > 0 ? gradient_count : 1;
    gsync_status status;
    plan->gradient_count = gradient_count;
    GS_TRY_OR(gs_memory_new(&plan->buckets, n, sizeof *plan->buckets, "the bucket plan"), failed);
    GS_TRY_OR(gs_memory_new(&plan->members, n, sizeof *plan->members, "the bucket plan"), failed);
    GS_TRY_OR(gs_memory_new(&plan->bucket_of, n, sizeof *plan->bucket_of, "the bucket plan"), failed);
    GS_TRY_OR(gs_memory_new(&plan->element_offset, n, sizeof *plan->element_offset, "the bucket plan"), failed);
    GS_TRY_OR(gs_memory_new(&plan->scratch, n, 3 * sizeof *plan->scratch, "the bucket plan"), failed);
    GS_TRY_OR(gs_memory_new(&plan->scratch_buckets, n, sizeof *plan->scratch_buckets, "the bucket plan"), failed);
    for (size_t i = 0; i < n; i++) {
        plan->bucket_of[i] = GS_NO_BUCKET;
    }
    return GSYNC_OK;
failed:
    gs_bucket_plan_clear(plan);
    return status;
}

void gs_bucket_plan_clear(gs_bucket_plan *plan) {
    gs_memory_free(plan->scratch_buckets);
    gs_memory_free(plan->scratch);
    gs_memory_free(plan->element_offset);
    gs_memory_free(plan->bucket_of);
    gs_memory_free(plan->members);
    gs_memory_free(plan->buckets);
    memset(plan, 0, sizeof *plan);
}

static size_t first_cap(const gs_plan_rule *rule) {
    switch (rule->strategy) {
    case GSYNC_STRATEGY_DDP:
        return rule->bytes_first_max;
    case GSYNC_STRATEGY_FIXED:
        return rule->bytes_max;
    case GSYNC_STRATEGY_SINGLE:
        break;
    }
    return SIZE_MAX; /* SINGLE */
}

static void close_bucket(open_bucket *open, const gs_plan_rule *rule) {
    open->number = GS_NO_BUCKET;
    open->bytes = 0;
    open->bytes_max = rule->bytes_max;
}

/* A cap of SIZE_MAX is none at all. It must not be reached either by sums that were cut to SIZE_MAX. */
static bool has_reached_cap(const open_bucket *open) {
    return open->bytes_max != SIZE_MAX && open->bytes >= open->bytes_max;
}

/* Asked while a bucket is open. Such a bucket has not reached its cap, so the difference is not negative. */
static bool must_close_before(const open_bucket *open, size_t bytes, const gs_plan_rule *rule) {
    if (open->bytes_max == SIZE_MAX) {
        return false;
    }
    const size_t room = rule->strategy == GSYNC_STRATEGY_FIXED ? open->bytes_max - open->bytes : open->bytes_max;
    return bytes > room;
}

static void open_new_bucket(gs_bucket_plan *plan, open_bucket *open, const gs_plan_gradient *gradient) {
    open->number = (uint32_t)plan->bucket_count++;
    plan->scratch_buckets[open->number] = (gs_bucket){.dtype = gradient->dtype, .wire = gradient->wire};
}

static void assign(gs_bucket_plan *plan, open_bucket *open, const gs_plan_gradient *gradient, uint32_t index,
                   uint32_t position, const gs_plan_rule *rule) {
    const size_t bytes = multiply_saturated(gradient->count, gsync_dtype_size(gradient->dtype));
    /* Decided by the cap in force when the gradient arrives. Closing the bucket before it moves that cap on, and a
       gradient that was too large for the first cap must not then collect others under the next one. */
    const bool travels_alone = bytes > open->bytes_max;
    if (open->number != GS_NO_BUCKET && must_close_before(open, bytes, rule)) {
        close_bucket(open, rule);
    }
    if (open->number == GS_NO_BUCKET) {
        open_new_bucket(plan, open, gradient);
    }
    plan->bucket_of[index] = open->number;
    plan->scratch_buckets[open->number].gradient_count++;
    closing_positions(plan)[open->number] = position;
    open->bytes = add_saturated(open->bytes, bytes);
    if (travels_alone || has_reached_cap(open)) {
        close_bucket(open, rule);
    }
}

static void assign_all(gs_bucket_plan *plan, const gs_plan_gradient *gradients, const uint32_t *order,
                       const gs_plan_rule *rule) {
    open_bucket open[DTYPE_END][GS_PLAN_WIRES_MAX];
    for (size_t i = 0; i < (size_t)DTYPE_END * GS_PLAN_WIRES_MAX; i++) {
        open[i / GS_PLAN_WIRES_MAX][i % GS_PLAN_WIRES_MAX] = (open_bucket){GS_NO_BUCKET, 0, first_cap(rule)};
    }
    plan->bucket_count = 0;
    for (uint32_t position = 0; position < plan->gradient_count; position++) {
        const uint32_t index = order[position];
        const gs_plan_gradient *const gradient = &gradients[index];
        assert(index < plan->gradient_count && gradient->dtype > 0 && gradient->dtype < DTYPE_END);
        assert(gradient->wire < GS_PLAN_WIRES_MAX);
        plan->bucket_of[index] = GS_NO_BUCKET;
        plan->element_offset[index] = 0;
        if (gradient->is_trainable && gradient->count > 0) {
            assign(plan, &open[gradient->dtype][gradient->wire], gradient, index, position, rule);
        }
    }
}

/*
 * Gives the buckets in scratch_buckets their final numbers, by closing position. No two buckets close at the same
 * position, and positions are small numbers: they are dropped into their places instead of being compared.
 */
static void sort_buckets(gs_bucket_plan *plan) {
    uint32_t *const number_at = sort_space(plan);
    for (size_t position = 0; position < plan->gradient_count; position++) {
        number_at[position] = GS_NO_BUCKET;
    }
    for (uint32_t number = 0; number < plan->bucket_count; number++) {
        number_at[closing_positions(plan)[number]] = number;
    }
    uint32_t sorted = 0;
    uint32_t first = 0;
    for (size_t position = 0; position < plan->gradient_count; position++) {
        const uint32_t number = number_at[position];
        if (number == GS_NO_BUCKET) {
            continue;
        }
        gs_bucket *const bucket = &plan->buckets[sorted];
        *bucket = plan->scratch_buckets[number];
        bucket->first = first;
        first += bucket->gradient_count;
        new_numbers(plan)[number] = sorted++;
    }
}

/* Registration order inside a bucket comes from walking the gradients in that order. */
static void list_members(gs_bucket_plan *plan) {
    uint32_t *const filled = sort_space(plan);
    memset(filled, 0, plan->bucket_count * sizeof *filled);
    for (uint32_t index = 0; index < plan->gradient_count; index++) {
        if (plan->bucket_of[index] == GS_NO_BUCKET) {
            continue;
        }
        const uint32_t number = new_numbers(plan)[plan->bucket_of[index]];
        plan->bucket_of[index] = number;
        plan->members[plan->buckets[number].first + filled[number]++] = index;
    }
}

static void place_elements(gs_bucket_plan *plan, const gs_plan_gradient *gradients) {
    for (size_t number = 0; number < plan->bucket_count; number++) {
        gs_bucket *const bucket = &plan->buckets[number];
        for (uint32_t i = 0; i < bucket->gradient_count; i++) {
            const uint32_t index = plan->members[bucket->first + i];
            plan->element_offset[index] = bucket->element_count;
            const size_t end = add_saturated(bucket->element_count, gradients[index].count);
            bucket->element_count = add_saturated(end, missing_to_block(end, gradients[index].block));
        }
    }
}

#define DIGEST_SEED UINT64_C(0x6772616473796E63)

/* For a given word each step is a bijection of digest: what differed before stays different. */
static uint64_t mix(uint64_t digest, uint64_t word) {
    digest = (digest ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    digest = (digest ^ (digest >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    return digest ^ (digest >> 31);
}

/* Offsets and element counts tell the size of every gradient that travels. */
static uint64_t digest_of(const gs_bucket_plan *plan) {
    uint64_t digest = mix(mix(DIGEST_SEED, plan->gradient_count), plan->bucket_count);
    for (size_t number = 0; number < plan->bucket_count; number++) {
        const gs_bucket *const bucket = &plan->buckets[number];
        digest = mix(digest, bucket->gradient_count);
        digest = mix(digest, bucket->element_count);
        digest = mix(digest, (uint64_t)bucket->dtype);
        for (uint32_t i = 0; i < bucket->gradient_count; i++) {
            const uint32_t index = plan->members[bucket->first + i];
            digest = mix(digest, index);
            digest = mix(digest, plan->element_offset[index]);
        }
    }
    return digest != 0 ? digest : 1; /* 0 is what callers report before there is a plan */
}

void gs_bucket_plan_build(gs_bucket_plan *plan, const gs_plan_gradient *gradients, const uint32_t *order,
                          const gs_plan_rule *rule) {
    assign_all(plan, gradients, order, rule);
    sort_buckets(plan);
    list_members(plan);
    place_elements(plan, gradients);
    plan->digest = digest_of(plan);
}

void gs_bucket_plan_reorder(gs_bucket_plan *plan, const uint32_t *order) {
    for (uint32_t position = 0; position < plan->gradient_count; position++) {
        const uint32_t number = plan->bucket_of[order[position]];
        if (number != GS_NO_BUCKET) {
            closing_positions(plan)[number] = position;
        }
    }
    for (size_t number = 0; number < plan->bucket_count; number++) {
        plan->scratch_buckets[number] = plan->buckets[number];
    }
    sort_buckets(plan);
    list_members(plan);
    plan->digest = digest_of(plan);
}

bool gs_bucket_plan_complete_order(const gs_bucket_plan *plan, const uint32_t *observed, size_t observed_count,
                                   uint32_t *order) {
    uint32_t *const is_observed = sort_space(plan);
    for (size_t i = 0; i < plan->gradient_count; i++) {
        is_observed[i] = 0;
    }
    for (size_t i = 0; i < observed_count; i++) {
        if (observed[i] >= plan->gradient_count || is_observed[observed[i]]) {
            return false;
        }
        is_observed[observed[i]] = 1;
    }
    /* order may be observed itself: its head is then written with what it holds. */
    size_t filled = 0;
    for (; filled < observed_count; filled++) {
        order[filled] = observed[filled];
    }
    for (size_t index = plan->gradient_count; index-- > 0;) {
        if (!is_observed[index]) {
            order[filled++] = (uint32_t)index;
        }
    }
    return true;
}
