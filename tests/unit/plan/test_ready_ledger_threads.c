/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */
/*
 * Eight threads mark at once. Under ThreadSanitizer this also shows what a full bucket lets its marker see. Valgrind
 * runs one thread at a time: it would find nothing here that it does not find in the test of a single thread.
 */
#include "plan/ready_ledger.h"

#include "plan_notation.h"
#include "seeded.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define THREADS 8
#define GRADIENTS 96
#define USES_MAX 3
#define SURPLUS 2
#define MARKS_MAX (GRADIENTS * (USES_MAX + SURPLUS))
#define SEEDS 100

typedef struct marking_crowd {
    plan_model model;
    gs_bucket_plan plan;
    gs_ready_ledger ledger;
    pthread_barrier_t start;
    uint32_t marks[MARKS_MAX]; /* gradient indices; thread t makes marks t, t + THREADS, ... */
    size_t mark_count;
    bool has_surplus; /* any of a gradient's marks may then be refused, and come after its bucket was full */
    /* Plain memory that stands for the gradients: every mark writes a place of its own before it marks. */
    unsigned char written[MARKS_MAX];
    atomic_uint full_count[GRADIENTS]; /* per bucket */
    atomic_uint mark_result_count[GS_MARK_TOO_OFTEN + 1];
    atomic_uint unseen_count; /* writes that the marker of a full bucket did not see */
} marking_crowd;

typedef struct crowd_member {
    marking_crowd *crowd;
    size_t number;
} crowd_member;

static bool is_in_bucket(const marking_crowd *crowd, size_t mark, uint32_t bucket_index) {
    return crowd->plan.bucket_of[crowd->marks[mark]] == bucket_index;
}

static void look_at_full_bucket(marking_crowd *crowd, uint32_t bucket_index) {
    atomic_fetch_add(&crowd->full_count[bucket_index], 1);
    for (size_t mark = 0; mark < crowd->mark_count && !crowd->has_surplus; mark++) {
        if (is_in_bucket(crowd, mark, bucket_index) && !crowd->written[mark]) {
            atomic_fetch_add(&crowd->unseen_count, 1);
        }
    }
}

static void *mark_own_share(void *argument) {
    const crowd_member *const member = argument;
    marking_crowd *const crowd = member->crowd;
    pthread_barrier_wait(&crowd->start);
    for (size_t mark = member->number; mark < crowd->mark_count; mark += THREADS) {
        const uint32_t index = crowd->marks[mark];
        crowd->written[mark] = 1;
        const gs_mark result = gs_ready_ledger_mark(&crowd->ledger, &crowd->plan, crowd->model.gradients, index);
        atomic_fetch_add(&crowd->mark_result_count[result], 1);
        if (result == GS_MARK_BUCKET_FULL) {
            look_at_full_bucket(crowd, crowd->plan.bucket_of[index]);
        }
    }
    return NULL;
}

/* Buckets of random sizes; every gradient has 1 .. uses_max uses. */
static void gather(marking_crowd *crowd, seeded *random, uint32_t uses_max) {
    *crowd = (marking_crowd){0};
    crowd->model.count = GRADIENTS;
    for (size_t i = 0; i < GRADIENTS; i++) {
        const uint32_t uses = 1 + (uint32_t)seeded_below(random, uses_max);
        crowd->model.gradients[i] = (gs_plan_gradient){
            .count = 1 + seeded_below(random, 10), .dtype = GSYNC_FLOAT32, .uses = uses, .is_trainable = true};
    }
    seeded_permutation(random, crowd->model.order, GRADIENTS);
    const gs_plan_rule rule = plan_rule_fixed(1 + seeded_below(random, 400));
    assert_int_equal(gs_bucket_plan_init(&crowd->plan, GRADIENTS), GSYNC_OK);
    assert_int_equal(gs_ready_ledger_init(&crowd->ledger, GRADIENTS), GSYNC_OK);
    gs_bucket_plan_build(&crowd->plan, crowd->model.gradients, crowd->model.order, &rule);
    gs_ready_ledger_reset(&crowd->ledger, &crowd->plan, true);
}

/* As many marks of each gradient as extra says beyond its uses, all in random order. */
static void shuffle_marks(marking_crowd *crowd, seeded *random, uint32_t extra) {
    uint32_t sorted[MARKS_MAX];
    crowd->has_surplus = extra > 0;
    for (uint32_t index = 0; index < GRADIENTS; index++) {
        for (uint32_t i = 0; i < crowd->model.gradients[index].uses + extra; i++) {
            sorted[crowd->mark_count++] = index;
        }
    }
    uint32_t places[MARKS_MAX];
    seeded_permutation(random, places, crowd->mark_count);
    for (size_t i = 0; i < crowd->mark_count; i++) {
        crowd->marks[places[i]] = sorted[i];
    }
}

static void let_all_mark(marking_crowd *crowd) {
    pthread_t threads[THREADS];
    crowd_member members[THREADS];
    assert_int_equal(pthread_barrier_init(&crowd->start, NULL, THREADS), 0);
    for (size_t i = 0; i < THREADS; i++) {
        members[i] = (crowd_member){crowd, i};
        assert_int_equal(pthread_create(&threads[i], NULL, mark_own_share, &members[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    pthread_barrier_destroy(&crowd->start);
}

static void disperse(marking_crowd *crowd) {
    gs_ready_ledger_clear(&crowd->ledger);
    gs_bucket_plan_clear(&crowd->plan);
}

static unsigned results(const marking_crowd *crowd, gs_mark result) {
    return atomic_load(&crowd->mark_result_count[result]);
}

static const char *check_full_buckets(const marking_crowd *crowd) {
    for (size_t b = 0; b < crowd->plan.bucket_count; b++) {
        if (atomic_load(&crowd->full_count[b]) != 1) {
            return "a bucket was not reported full exactly once";
        }
    }
    return results(crowd, GS_MARK_BUCKET_FULL) == crowd->plan.bucket_count ? NULL : "too many buckets were full";
}

static const char *check_order(const marking_crowd *crowd) {
    bool is_seen[GRADIENTS] = {false};
    if (atomic_load(&crowd->ledger.order_count) != GRADIENTS) {
        return "the order does not have every gradient";
    }
    for (size_t i = 0; i < GRADIENTS; i++) {
        const uint32_t index = atomic_load(&crowd->ledger.order[i]);
        if (index >= GRADIENTS || is_seen[index]) {
            return "the order has a gradient twice";
        }
        is_seen[index] = true;
    }
    return NULL;
}

static const char *check_visibility(const marking_crowd *crowd) {
    return atomic_load(&crowd->unseen_count) == 0 ? NULL : "a full bucket was not seen as it was written";
}

static const char *check_surplus(const marking_crowd *crowd) {
    return results(crowd, GS_MARK_TOO_OFTEN) == SURPLUS * GRADIENTS ? NULL
                                                                    : "surplus marks were counted, or good ones not";
}

static void try_seeds(uint32_t uses_max, uint32_t extra, const char *(*check)(const marking_crowd *)) {
    static marking_crowd tried;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        seeded random = {seed};
        gather(&tried, &random, uses_max);
        shuffle_marks(&tried, &random, extra);
        let_all_mark(&tried);
        const char *const broken = check(&tried);
        disperse(&tried);
        if (broken != NULL) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, broken);
        }
    }
}

static void reports_every_bucket_full_to_exactly_one_thread(void **state) {
    (void)state;
    try_seeds(1, 0, check_full_buckets);
}

static void reports_a_bucket_of_shared_weights_full_to_exactly_one_thread(void **state) {
    (void)state;
    try_seeds(USES_MAX, 0, check_full_buckets);
}

static void shows_the_marker_of_a_full_bucket_what_all_others_wrote(void **state) {
    (void)state;
    try_seeds(USES_MAX, 0, check_visibility);
}

static void records_every_gradient_once_in_the_order(void **state) {
    (void)state;
    try_seeds(USES_MAX, 0, check_order);
}

static void refuses_exactly_the_surplus_marks(void **state) {
    (void)state;
    try_seeds(USES_MAX, SURPLUS, check_surplus);
}

static void reports_every_bucket_full_once_in_spite_of_surplus_marks(void **state) {
    (void)state;
    try_seeds(USES_MAX, SURPLUS, check_full_buckets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_every_bucket_full_to_exactly_one_thread),
        cmocka_unit_test(reports_a_bucket_of_shared_weights_full_to_exactly_one_thread),
        cmocka_unit_test(shows_the_marker_of_a_full_bucket_what_all_others_wrote),
        cmocka_unit_test(records_every_gradient_once_in_the_order),
        cmocka_unit_test(refuses_exactly_the_surplus_marks),
        cmocka_unit_test(reports_every_bucket_full_once_in_spite_of_surplus_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
