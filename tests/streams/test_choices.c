/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* is_auto on a GPU: which way buckets go is measured on the device, and all ranks decide alike, whether a host waits
 * for steps or not. What times say is up to the test; ranks.test_wire_auto has the rule itself. */

#include "device_pair.h"

#include "sync/pipeline.h"

enum { RANKS = 3, WARMUP = 2, TRIALS = 6, TIME_NS = 1000000 };

typedef struct scene {
    ending ending;
    bool has_commit; /* again, after the last trial */
    gsync_comm *comms[RANKS];
    gsync_bucket_info info[RANKS][2];
    float results[RANKS][2];
} scene;

static atomic_int measured;
static atomic_int absurd;

void __real_gs_choice_note(gs_pipeline *pipeline, size_t bucket, uint64_t took_ns);
void __wrap_gs_choice_note(gs_pipeline *pipeline, size_t bucket, uint64_t took_ns);

/* Each rank alone would choose otherwise than all of them: who has been waiting sees more than who came last, and
 * that is rank 1 when buckets go natively, and rank 2 when they are narrow. */
void __wrap_gs_choice_note(gs_pipeline *pipeline, size_t bucket, uint64_t took_ns) {
    const bool is_narrow = gs_narrow_is_on(pipeline, bucket);
    const bool is_first = pipeline->plan->members[pipeline->plan->buckets[bucket].first] == 0;
    const bool is_last = pipeline->group->rank == (is_narrow ? 2 : 1);
    const uint64_t least = is_narrow == is_first ? TIME_NS : 2 * TIME_NS; /* the first gradient's pays, the other not */
    atomic_fetch_add(&measured, 1);
    atomic_fetch_add(&absurd, took_ns == 0 || took_ns > UINT64_C(100000000000));
    __real_gs_choice_note(pipeline, bucket, is_last ? least : 5 * TIME_NS);
}

static void open_pair(pair *p, gsync_comm *comm) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_wire_options wire = GSYNC_WIRE_OPTIONS_INIT;
    options.bucket_bytes_max = 1; /* each gradient alone */
    options.bucket_bytes_first_max = 1;
    wire.is_auto = 1;
    wire.elements_min = 1;
    wire.warmup_steps = WARMUP;
    pair_make(p, comm, &options);
    CHECK_STATUS(gsync_reducer_set_wire(p->reducer, NULL, GSYNC_WIRE_BFLOAT16, &wire), GSYNC_OK, "");
    CHECK_STATUS(gsync_reducer_commit(p->reducer), GSYNC_OK, "");
}

static gsync_bucket_info info_of(const pair *p, const char *name) {
    gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
    const long bucket = gsync_bucket_of(p->reducer, name);
    CHECK_STATUS(gsync_bucket_get(p->reducer, (size_t)bucket, &info), GSYNC_OK, "");
    return info;
}

static void step(const scene *s, const pair *p, float value) {
    (s->ending == WAITS_ON_STREAM ? step_on_stream : step_on_host)(p, (double)value);
}

/* bfloat16 has no 257: it makes 256 of it, or 258. */
static bool was_rounded(const pair *p, int g) {
    return first_of(p, g) != 257.0f;
}

static void train(scene *s, int rank, const pair *p) {
    for (int i = 1; i <= WARMUP + TRIALS; i++) {
        step(s, p, 257.0f);
        const bool is_narrow = i > WARMUP && (i - WARMUP) % 2 == 0;
        CHECK(was_rounded(p, 0) == is_narrow && was_rounded(p, 1) == is_narrow);
    }
    if (s->has_commit) {
        CHECK_STATUS(gsync_reducer_set_trainable(p->reducer, "b", 0), GSYNC_OK, "");
        CHECK_STATUS(gsync_reducer_commit(p->reducer), GSYNC_OK, "");
        CHECK(info_of(p, "a").native_ns == 0); /* they try again */
        return;
    }
    step(s, p, 257.0f);
    for (int g = 0; g < 2; g++) {
        s->info[rank][g] = info_of(p, g == 0 ? "a" : "b");
        s->results[rank][g] = first_of(p, g);
    }
}

static void run_rank(int rank, int ranks, void *context) {
    scene *s = context;
    pair p = {.reducer = NULL};
    (void)ranks;
    open_pair(&p, s->comms[rank]);
    train(s, rank, &p);
    pair_close(&p);
    gsync_comm_destroy(&s->comms[rank]);
}

static void run(scene *s) {
    simcuda_reset();
    atomic_store(&measured, 0);
    atomic_store(&absurd, 0);
    assert_int_equal(gsync_comm_threads(s->comms, RANKS, NULL), GSYNC_OK);
    run_rank_threads(RANKS, run_rank, s);
    print_reports();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
    assert_int_equal(atomic_load(&measured), RANKS * TRIALS * 2);
    assert_int_equal(atomic_load(&absurd), 0);
    assert_int_equal(simcuda_objects(), 0);
}

static void check_choices(const scene *s) {
    for (int rank = 0; rank < RANKS; rank++) {
        const gsync_bucket_info *info = s->info[rank];
        assert_int_equal(info[0].wire, GSYNC_WIRE_BFLOAT16);
        assert_int_equal(info[0].narrow_ns, TIME_NS);
        assert_int_equal(info[0].native_ns, 2 * TIME_NS);
        assert_int_equal(info[1].wire, GSYNC_WIRE_NATIVE);
        assert_int_equal(info[1].narrow_ns, 2 * TIME_NS);
        assert_int_equal(info[1].native_ns, TIME_NS);
        assert_true(s->results[rank][0] == s->results[0][0] && s->results[rank][0] != 257.0f);
        assert_true(s->results[rank][1] == 257.0f);
    }
}

static void ranks_choose_alike_by_times_of_their_devices(void **state) {
    (void)state;
    scene s = {.ending = WAITS_ON_HOST};
    run(&s);
    check_choices(&s);
}

static void steps_that_no_host_waits_for_are_read_by_the_next(void **state) {
    (void)state;
    scene s = {.ending = WAITS_ON_STREAM};
    run(&s);
    check_choices(&s);
}

static void times_are_read_before_another_plan(void **state) {
    (void)state;
    scene s = {.ending = WAITS_ON_STREAM, .has_commit = true};
    run(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_choose_alike_by_times_of_their_devices),
        cmocka_unit_test(steps_that_no_host_waits_for_are_read_by_the_next),
        cmocka_unit_test(times_are_read_before_another_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
