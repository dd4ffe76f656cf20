/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for every plan, tried on random models. A failure prints the seed of its case. */
#include "plan_notation.h"

#include "seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SEEDS 3000

typedef struct random_case {
    uint64_t seed;
    plan_model model;
    gs_plan_rule rule;
    gs_bucket_plan plan;
} random_case;

static size_t random_elements(seeded *random) {
    switch (seeded_below(random, 8)) {
    case 0:
        return 0;
    case 1:
        return 1 + seeded_below(random, 2000);
    default:
        return 1 + seeded_below(random, 60);
    }
}

static size_t random_cap(seeded *random) {
    switch (seeded_below(random, 8)) {
    case 0:
        return 1;
    case 1:
        return SIZE_MAX;
    default:
        return 1 + seeded_below(random, 1500);
    }
}

static void start_case(random_case *tried, uint64_t seed) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    seeded random = {seed};
    tried->seed = seed;
    tried->model.count = seeded_below(&random, PLAN_MODEL_MAX + 1);
    const size_t dtype_count = 1 + seeded_below(&random, 4);
    for (size_t i = 0; i < tried->model.count; i++) {
        const size_t count = random_elements(&random);
        const gsync_dtype dtype = dtypes[seeded_below(&random, dtype_count)];
        const bool is_trainable = seeded_below(&random, 10) > 0;
        tried->model.gradients[i] =
            (gs_plan_gradient){.count = count, .dtype = dtype, .uses = 1, .is_trainable = is_trainable};
    }
    seeded_permutation(&random, tried->model.order, tried->model.count);
    tried->rule.strategy = (gsync_strategy)seeded_below(&random, 3);
    tried->rule.bytes_first_max = random_cap(&random);
    tried->rule.bytes_max = random_cap(&random);
    assert_int_equal(gs_bucket_plan_init(&tried->plan, tried->model.count), GSYNC_OK);
    gs_bucket_plan_build(&tried->plan, tried->model.gradients, tried->model.order, &tried->rule);
}

/* broken says which claim does not hold; NULL if all do. */
static void end_case(random_case *tried, const char *broken) {
    gs_bucket_plan_clear(&tried->plan);
    if (broken != NULL) {
        fail_msg("seed %llu: %s", (unsigned long long)tried->seed, broken);
    }
}

static bool travels(const gs_plan_gradient *gradient) {
    return gradient->is_trainable && gradient->count > 0;
}

static size_t bytes_of(const gs_plan_gradient *gradient) {
    return gradient->count * gsync_dtype_size(gradient->dtype);
}

static const char *check_membership(const random_case *tried) {
    const gs_bucket_plan *const plan = &tried->plan;
    size_t seen[PLAN_MODEL_MAX] = {0};
    size_t first = 0;
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_bucket *const bucket = &plan->buckets[b];
        if (bucket->gradient_count == 0 || bucket->first != first) {
            return "a bucket is empty or does not begin where the last one ended";
        }
        first += bucket->gradient_count;
        for (uint32_t i = 0; i < bucket->gradient_count; i++) {
            const uint32_t index = plan->members[bucket->first + i];
            seen[index]++;
            if (plan->bucket_of[index] != b || tried->model.gradients[index].dtype != bucket->dtype) {
                return "a member does not belong to its bucket";
            }
        }
    }
    for (size_t i = 0; i < tried->model.count; i++) {
        const bool has_to_travel = travels(&tried->model.gradients[i]);
        if (seen[i] != (has_to_travel ? 1 : 0) || (plan->bucket_of[i] == GS_NO_BUCKET) == has_to_travel) {
            return "a gradient is not in exactly one bucket, or a frozen or empty one is in any";
        }
    }
    return NULL;
}

static void puts_every_gradient_that_travels_into_exactly_one_bucket(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_case tried;
        start_case(&tried, seed);
        end_case(&tried, check_membership(&tried));
    }
}

static const char *check_offsets(const random_case *tried) {
    const gs_bucket_plan *const plan = &tried->plan;
    for (size_t b = 0; b < plan->bucket_count; b++) {
        const gs_bucket *const bucket = &plan->buckets[b];
        const uint32_t *const members = plan->members + bucket->first;
        size_t end = 0;
        for (uint32_t i = 0; i < bucket->gradient_count; i++) {
            if (i > 0 && members[i] <= members[i - 1]) {
                return "members are not in order of registration";
            }
            if (plan->element_offset[members[i]] != end) {
                return "a gradient does not begin where its neighbour ends";
            }
            end += tried->model.gradients[members[i]].count;
        }
        if (end != bucket->element_count) {
            return "a bucket is not as long as its gradients";
        }
    }
    return NULL;
}

static void lays_gradients_end_to_end_in_order_of_registration(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_case tried;
        start_case(&tried, seed);
        end_case(&tried, check_offsets(&tried));
    }
}

static const char *check_fixed_cap(const random_case *tried) {
    for (size_t b = 0; b < tried->plan.bucket_count; b++) {
        const gs_bucket *const bucket = &tried->plan.buckets[b];
        const size_t bytes = bucket->element_count * gsync_dtype_size(bucket->dtype);
        if (bytes > tried->rule.bytes_max && bucket->gradient_count > 1) {
            return "a bucket of several gradients exceeds the cap";
        }
    }
    return NULL;
}

static void exceeds_a_fixed_cap_only_for_a_single_gradient(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_case tried;
        start_case(&tried, seed);
        tried.rule.strategy = GSYNC_STRATEGY_FIXED;
        gs_bucket_plan_build(&tried.plan, tried.model.gradients, tried.model.order, &tried.rule);
        end_case(&tried, check_fixed_cap(&tried));
    }
}

static const char *check_repetition(const random_case *tried) {
    gs_bucket_plan again;
    assert_int_equal(gs_bucket_plan_init(&again, tried->model.count), GSYNC_OK);
    gs_bucket_plan_build(&again, tried->model.gradients, tried->model.order, &tried->rule);
    char text[PLAN_TEXT_MAX];
    char text_again[PLAN_TEXT_MAX];
    plan_write(&tried->plan, text);
    plan_write(&again, text_again);
    const bool is_same = strcmp(text, text_again) == 0 && again.digest == tried->plan.digest;
    gs_bucket_plan_clear(&again);
    return is_same ? NULL : "two plans of the same input differ";
}

static void plans_the_same_from_the_same_input(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_case tried;
        start_case(&tried, seed);
        end_case(&tried, check_repetition(&tried));
    }
}

/* A plan as a careful reader of the rules would draw it up: dtype by dtype, looking ahead for where a bucket ends. */
typedef struct drawn_plan {
    size_t bucket_count;
    uint32_t bucket_of[PLAN_MODEL_MAX];
    size_t last_position[PLAN_MODEL_MAX];
} drawn_plan;

/* How many of the sizes at the head belong into one bucket, and whether the next one was refused as above the cap. */
static size_t head_length(const size_t *bytes, size_t count, const gs_plan_rule *rule, size_t cap, bool *is_refused) {
    *is_refused = false;
    if (rule->strategy == GSYNC_STRATEGY_SINGLE) {
        return count;
    }
    if (bytes[0] > cap) {
        return 1;
    }
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        *is_refused = bytes[i] > cap;
        if (*is_refused || (rule->strategy == GSYNC_STRATEGY_FIXED && sum + bytes[i] > cap)) {
            return i;
        }
        sum += bytes[i];
        if (rule->strategy == GSYNC_STRATEGY_DDP && sum >= cap) {
            return i + 1;
        }
    }
    return count;
}

static void draw_dtype(drawn_plan *drawn, const random_case *tried, gsync_dtype dtype) {
    size_t positions[PLAN_MODEL_MAX];
    size_t bytes[PLAN_MODEL_MAX];
    size_t count = 0;
    for (size_t position = 0; position < tried->model.count; position++) {
        const gs_plan_gradient *const gradient = &tried->model.gradients[tried->model.order[position]];
        if (travels(gradient) && gradient->dtype == dtype) {
            bytes[count] = bytes_of(gradient);
            positions[count++] = position;
        }
    }
    bool is_refused = false;
    size_t cap = tried->rule.strategy == GSYNC_STRATEGY_DDP ? tried->rule.bytes_first_max : tried->rule.bytes_max;
    for (size_t done = 0; done < count;) {
        /* What one cap refused stays alone, also where the next cap has room for more. */
        const bool is_alone = is_refused;
        size_t length = head_length(bytes + done, count - done, &tried->rule, cap, &is_refused);
        if (is_alone) {
            length = 1;
            is_refused = false;
        }
        for (size_t i = 0; i < length; i++) {
            drawn->bucket_of[tried->model.order[positions[done + i]]] = (uint32_t)drawn->bucket_count;
        }
        done += length;
        drawn->last_position[drawn->bucket_count++] = positions[done - 1];
        cap = tried->rule.bytes_max;
    }
}

/* The number of a drawn bucket once all are sorted: how many close before it. */
static uint32_t rank_of(const drawn_plan *drawn, uint32_t bucket) {
    uint32_t rank = 0;
    for (size_t other = 0; other < drawn->bucket_count; other++) {
        rank += drawn->last_position[other] < drawn->last_position[bucket];
    }
    return rank;
}

static const char *check_against_drawn_plan(const random_case *tried) {
    static const gsync_dtype dtypes[] = {GSYNC_BFLOAT16, GSYNC_FLOAT16, GSYNC_FLOAT32, GSYNC_FLOAT64};
    drawn_plan drawn = {0};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        draw_dtype(&drawn, tried, dtypes[i]);
    }
    if (drawn.bucket_count != tried->plan.bucket_count) {
        return "the number of buckets is not what the rules say";
    }
    for (size_t i = 0; i < tried->model.count; i++) {
        if (travels(&tried->model.gradients[i]) && rank_of(&drawn, drawn.bucket_of[i]) != tried->plan.bucket_of[i]) {
            return "a gradient is in another bucket than the rules say";
        }
    }
    return NULL;
}

static void plans_what_a_reader_of_the_rules_would_draw_up(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_case tried;
        start_case(&tried, seed);
        end_case(&tried, check_against_drawn_plan(&tried));
    }
}

static const char *check_digest_change(random_case *tried) {
    char before[PLAN_TEXT_MAX];
    char after[PLAN_TEXT_MAX];
    plan_write(&tried->plan, before);
    const uint64_t digest = tried->plan.digest;
    seeded random = {tried->seed};
    seeded_permutation(&random, tried->model.order, tried->model.count);
    tried->rule.bytes_max = random_cap(&random);
    gs_bucket_plan_build(&tried->plan, tried->model.gradients, tried->model.order, &tried->rule);
    plan_write(&tried->plan, after);
    const bool is_same = strcmp(before, after) == 0;
    return is_same == (digest == tried->plan.digest) ? NULL : "the digest does not tell two plans apart";
}

static void changes_the_digest_exactly_when_the_plan_changes(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        random_case tried;
        start_case(&tried, seed);
        end_case(&tried, check_digest_change(&tried));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_every_gradient_that_travels_into_exactly_one_bucket),
        cmocka_unit_test(lays_gradients_end_to_end_in_order_of_registration),
        cmocka_unit_test(exceeds_a_fixed_cap_only_for_a_single_gradient),
        cmocka_unit_test(plans_the_same_from_the_same_input),
        cmocka_unit_test(plans_what_a_reader_of_the_rules_would_draw_up),
        cmocka_unit_test(changes_the_digest_exactly_when_the_plan_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
