/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* Steps that do not come to their end: within the deadline the ranks that wait say for whom, and for which gradient. */

#include "device_pair.h"

#include <time.h>

enum { RANKS = 3, LATE = 2, TIMEOUT_MS = 1000, LONG_MS = 40000, WORDS_MAX = 3 };

typedef struct crew crew;
typedef void rank_story(crew *c, pair *p, int rank);
struct crew {
    rank_story *story;
    gsync_options options;
    gsync_comm *comms[RANKS_MAX];
    const ncclUniqueId *id;    /* NULL: ranks share memory */
    pthread_barrier_t is_over; /* the ranks that wait have given up */
};

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static gsync_comm_options options_with(uint32_t timeout_ms) {
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    return options;
}

static ncclComm_t meet_over_nccl(crew *c, int rank) {
    ncclComm_t nccl = NULL;
    const gsync_comm_options options = options_with(TIMEOUT_MS);
    OK(ncclCommInitRank(&nccl, RANKS, *c->id, rank));
    CHECK_STATUS(gsync_comm_from_nccl(&c->comms[rank], nccl, &options), GSYNC_OK, "");
    return nccl;
}

/* Several crews play at the same time: most of it is waiting. */
enum { CREWS_MAX = 2 };

static void run_story(int place, int places, void *context) {
    crew *c = (crew *)context + place / RANKS;
    const int rank = place % RANKS;
    pair p = {0};
    (void)places;
    simcuda_thread_rank(rank);
    ncclComm_t nccl = c->id != NULL ? meet_over_nccl(c, rank) : NULL;
    pair_open(&p, c->comms[rank], &c->options);
    c->story(c, &p, rank);
    pair_close(&p);
    gsync_comm_destroy(&c->comms[rank]);
    OK(nccl != NULL ? ncclCommDestroy(nccl) : ncclSuccess);
}

/* A bucket for each gradient; 'b' is first. */
static gsync_options two_buckets(void) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.order = GSYNC_ORDER_REGISTERED;
    options.bucket_bytes_max = 4;
    options.bucket_bytes_first_max = 4;
    return options;
}

static void play(crew *crews, int count) {
    for (int i = 0; i < count; i++) {
        assert_int_equal(pthread_barrier_init(&crews[i].is_over, NULL, RANKS), 0);
    }
    run_rank_threads(count * RANKS, run_story, crews);
    simcuda_wait_idle();
    assert_int_equal(simcuda_allocations(), 0);
    assert_int_equal(simcuda_objects(), 0);
    for (int i = 0; i < count; i++) {
        pthread_barrier_destroy(&crews[i].is_over);
    }
}

static crew crew_for(rank_story *story, uint32_t timeout_ms) {
    crew c = {.story = story, .options = two_buckets()};
    const gsync_comm_options options = options_with(timeout_ms);
    assert_int_equal(gsync_comm_threads(c.comms, RANKS, &options), GSYNC_OK);
    return c;
}

static void tell(rank_story *story, uint32_t timeout_ms) {
    crew c = crew_for(story, timeout_ms);
    play(&c, 1);
    simcuda_reset();
}

static void tell_both(rank_story *one, rank_story *other) {
    crew crews[CREWS_MAX] = {crew_for(one, TIMEOUT_MS), crew_for(other, TIMEOUT_MS)};
    play(crews, CREWS_MAX);
}

/* One of the ranks that wait is the first to give up; the others are told by its words. */
static void check_words(int line, gsync_status status, const char *const *words) {
    bool is_right = status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_PEER_LOST || status == GSYNC_ERR_ABORTED;
    for (int i = 0; i < WORDS_MAX && words[i] != NULL; i++) {
        is_right = is_right && strstr(gsync_last_error(), words[i]) != NULL;
    }
    if (!is_right) {
        fprintf(stderr, "line %d: %s: %s\n", line, gsync_status_name(status), gsync_last_error());
    }
    CHECK(is_right);
}

#define CHECK_WORDS(call, ...) check_words(__LINE__, call, (const char *const[WORDS_MAX]){__VA_ARGS__})

static void begin(const pair *p) {
    CHECK_STATUS(gsync_begin(p->reducer, GSYNC_SYNC), GSYNC_OK, "");
}

static gsync_status finish_both(const pair *p) {
    begin(p);
    mark(p, 1, 1.0);
    mark(p, 0, 1.0);
    return gsync_finish(p->reducer, NULL);
}

/* The stream is given back at the deadline, and the next call says why. */
static gsync_status end_on_stream(const pair *p) {
    CHECK_STATUS(gsync_finish_on(p->reducer, p->compute, NULL), GSYNC_OK, "");
    OK(cudaStreamSynchronize(p->compute));
    return gsync_begin(p->reducer, GSYNC_SYNC);
}

static gsync_status finish_both_on_stream(const pair *p) {
    begin(p);
    mark(p, 1, 1.0);
    mark(p, 0, 1.0);
    return end_on_stream(p);
}

/* ---- a rank that does not come ---- */

static void play_absence(crew *c, pair *p, int rank) {
    if (rank != LATE) {
        CHECK_WORDS(finish_both(p), "step 1 is not over", "rank 2 has not begun it", "bucket 0 with gradient 'b'");
    }
    pthread_barrier_wait(&c->is_over);
}

static void play_absence_behind_streams(crew *c, pair *p, int rank) {
    if (rank != LATE) {
        CHECK_WORDS(finish_both_on_stream(p), "after gsync_finish_on", "rank 2 has not begun it",
                    "bucket 0 with gradient 'b'");
    }
    pthread_barrier_wait(&c->is_over);
}

static void a_rank_that_never_begins_is_named(void **state) {
    (void)state;
    tell_both(play_absence, play_absence_behind_streams);
}

static void mark_first(const pair *p) {
    begin(p);
    mark(p, 1, 1.0);
}

static void play_halt(crew *c, pair *p, int rank) {
    if (rank == LATE) {
        mark_first(p);
    } else {
        CHECK_WORDS(finish_both(p), "step 1", "rank 2 has launched 1 of 2 buckets", "bucket 1 with gradient 'a'");
    }
    pthread_barrier_wait(&c->is_over);
}

/* The wait for the order begins with the last mark, and so ends first. */
static void play_first_halt_behind_streams(crew *c, pair *p, int rank) {
    if (rank == LATE) {
        mark_first(p);
    } else {
        const struct timespec pause = {.tv_nsec = 300000000};
        begin(p);
        mark(p, 1, 1.0);
        mark(p, 0, 1.0);
        nanosleep(&pause, NULL);
        CHECK_WORDS(end_on_stream(p), "ready order", "rank 2 has launched 1 of 2 buckets",
                    "bucket 1 with gradient 'a'");
    }
    pthread_barrier_wait(&c->is_over);
}

/* There the ranks wait for rank 0's order too, and for that not longer. */
static void a_rank_that_stops_in_the_first_step_is_named(void **state) {
    (void)state;
    crew crews[CREWS_MAX] = {crew_for(play_halt, TIMEOUT_MS), crew_for(play_first_halt_behind_streams, TIMEOUT_MS)};
    crews[0].options.order = GSYNC_ORDER_AGREED;
    crews[1].options.order = GSYNC_ORDER_AGREED;
    play(crews, CREWS_MAX);
}

static void play_halt_behind_streams(crew *c, pair *p, int rank) {
    step_on_stream(p, 1.0);
    if (rank == LATE) {
        mark_first(p);
    } else {
        CHECK_WORDS(finish_both_on_stream(p), "step 2 is not over", "rank 2 has launched 1 of 2 buckets",
                    "bucket 1 with gradient 'a'");
    }
    pthread_barrier_wait(&c->is_over);
}

static void a_rank_that_stops_among_its_buckets_is_named(void **state) {
    (void)state;
    tell_both(play_halt, play_halt_behind_streams);
}

static void play_accumulation(crew *c, pair *p, int rank) {
    if (rank == LATE) {
        CHECK_STATUS(gsync_begin(p->reducer, GSYNC_ACCUMULATE), GSYNC_OK, "");
    } else {
        CHECK_WORDS(finish_both(p), "rank 2 has begun no step, but a micro-batch with GSYNC_ACCUMULATE",
                    "gradient 'b'");
    }
    pthread_barrier_wait(&c->is_over);
}

static void play_commit(crew *c, pair *p, int rank) {
    step_on_host(p, 1.0);
    if (rank == LATE) {
        CHECK(gsync_reducer_set_trainable(p->reducer, "b", 0) == GSYNC_OK);
        CHECK_WORDS(gsync_reducer_commit(p->reducer), "rank", NULL);
    } else {
        CHECK_WORDS(finish_both(p), "rank 2", "commit", "bucket 0 with gradient 'b'"); /* its deadline may be first */
    }
    pthread_barrier_wait(&c->is_over);
}

static void a_rank_that_accumulates_or_commits_meanwhile_is_named(void **state) {
    (void)state;
    tell_both(play_accumulation, play_commit);
}

/* Steps are counted anew from there. */
static void play_older_state(crew *c, pair *p, int rank) {
    unsigned char state[4096];
    const size_t bytes = gsync_state_size(p->reducer);
    CHECK(bytes <= sizeof state);
    CHECK(gsync_state_save(p->reducer, state, bytes) == GSYNC_OK);
    step_on_host(p, 1.0);
    step_on_host(p, 1.0);
    CHECK_STATUS(gsync_state_load(p->reducer, state, bytes), GSYNC_OK, "");
    if (rank != LATE) {
        CHECK_WORDS(finish_both(p), "step 1 is not over", "rank 2 has not begun it");
    }
    pthread_barrier_wait(&c->is_over);
}

/* ---- a rank that leaves: nobody waits for the deadline ---- */

static void play_departure(crew *c, pair *p, int rank) {
    step_on_stream(p, 1.0);
    OK(cudaStreamSynchronize(p->compute));
    if (rank == LATE) {
        mark_first(p);
        gsync_reducer_destroy(&p->reducer);
    } else {
        const double start = seconds_now();
        const gsync_status status = rank == 0 ? finish_both(p) : finish_both_on_stream(p);
        CHECK_WORDS(status, "step 2 cannot end", "rank 2 has destroyed its reducer", "bucket 1 with gradient 'a'");
        CHECK(seconds_now() - start < LONG_MS / 1000.0 / 2);
    }
    pthread_barrier_wait(&c->is_over);
}

static void a_rank_that_destroys_its_reducer_is_named(void **state) {
    (void)state;
    tell(play_departure, LONG_MS);
}

/* ---- a device that does not come to its end ---- */

static void hold_after_first(const pair *p) {
    begin(p);
    mark(p, 1, 1.0);
    OK(cudaStreamSynchronize(p->compute));
    simcuda_hold(p->compute);
    mark(p, 0, 1.0);
}

/* Earlier, what is queued might still reach the ranks that wait. */
static void release_when_over(crew *c, const pair *p, int rank) {
    pthread_barrier_wait(&c->is_over);
    if (rank == LATE) {
        simcuda_release(p->compute);
    }
}

static const char *const held[WORDS_MAX] = {"step 1 is not over", "on rank 2 a stream", "bucket 1 with gradient 'a'"};

static void play_held_producer(crew *c, pair *p, int rank) {
    if (rank == LATE) {
        hold_after_first(p);
        check_words(__LINE__, gsync_finish(p->reducer, NULL), held);
    } else {
        check_words(__LINE__, finish_both(p), held);
    }
    release_when_over(c, p, rank);
}

static void play_held_producer_behind_streams(crew *c, pair *p, int rank) {
    if (rank == LATE) {
        hold_after_first(p);
        CHECK_STATUS(gsync_finish_on(p->reducer, p->compute, NULL), GSYNC_OK, "");
    } else {
        check_words(__LINE__, finish_both_on_stream(p), held);
    }
    release_when_over(c, p, rank);
}

static void a_rank_whose_producer_hangs_is_named(void **state) {
    (void)state;
    tell_both(play_held_producer, play_held_producer_behind_streams);
}

static void play_hanging_collective(crew *c, pair *p, int rank) {
    (void)rank;
    CHECK_WORDS(finish_both(p), "step 1 is not over", "all ranks have launched all buckets", "look at NCCL");
    pthread_barrier_wait(&c->is_over);
}

static void where_all_have_launched_all_it_is_said(void **state) {
    (void)state;
    simcuda_fault("ncclAllReduce", LATE, 2, SIMCUDA_HANGS, 0);
    tell(play_hanging_collective, TIMEOUT_MS);
}

/* ---- ranks that share nothing but NCCL ---- */

static void play_halt_far_away(crew *c, pair *p, int rank) {
    if (rank == LATE) {
        hold_after_first(p);
        CHECK_WORDS(gsync_finish(p->reducer, NULL), "on rank 2 a stream", "bucket 1 with gradient 'a'");
    } else {
        CHECK_WORDS(finish_both(p), "launched all buckets",
                    rank == 0 ? "how far ranks 1, 2 are, is not known here"
                              : "how far ranks 0, 2 are, is not known here");
    }
    release_when_over(c, p, rank);
}

static void each_rank_says_what_it_knows_of_itself(void **state) {
    (void)state;
    ncclUniqueId id;
    simcuda_reset();
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    crew c = {.story = play_halt_far_away, .options = two_buckets(), .id = &id};
    play(&c, 1);
}

/* ---- what no other rank is needed for ---- */

static void play_slow_sums(crew *c, pair *p, int rank) {
    CHECK_STATUS(gsync_begin(p->reducer, GSYNC_ACCUMULATE), GSYNC_OK, "");
    if (rank == LATE) {
        OK(cudaStreamSynchronize(p->compute));
        simcuda_hold(p->compute);
    }
    mark(p, 1, 1.0);
    mark(p, 0, 1.0);
    const gsync_status status = gsync_finish(p->reducer, NULL);
    if (rank == LATE) {
        simcuda_release(p->compute);
        CHECK_WORDS(status, "rank 2: the device is not through", "bucket 0 with gradient 'b'");
    }
    pthread_barrier_wait(&c->is_over);
}

/* And steps are counted anew from a state that was loaded. */
static void sums_wait_for_no_other_rank_and_steps_for_those_of_the_same_number(void **state) {
    (void)state;
    crew crews[CREWS_MAX] = {crew_for(play_older_state, TIMEOUT_MS), crew_for(play_slow_sums, TIMEOUT_MS)};
    crews[1].options.accumulation = GSYNC_CLIENT_OVERWRITES;
    play(crews, CREWS_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_never_begins_is_named),
        cmocka_unit_test(a_rank_that_stops_in_the_first_step_is_named),
        cmocka_unit_test(a_rank_that_stops_among_its_buckets_is_named),
        cmocka_unit_test(a_rank_that_accumulates_or_commits_meanwhile_is_named),
        cmocka_unit_test(a_rank_that_destroys_its_reducer_is_named),
        cmocka_unit_test(a_rank_whose_producer_hangs_is_named),
        cmocka_unit_test(where_all_have_launched_all_it_is_said),
        cmocka_unit_test(each_rank_says_what_it_knows_of_itself),
        cmocka_unit_test(sums_wait_for_no_other_rank_and_steps_for_those_of_the_same_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
