/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* Private data flows through the rings: each element goes in once and comes out once, whoever goes on when. */

#include "private_trainer.h"

/* Of the control lane, through which the data flows here: 32 KiB. */
enum { PIECE = 8192 };

static const size_t counts[] = {1,         63,    64,        65,        129,           PIECE - 1,
                                PIECE,     1000,  PIECE + 1, 2 * PIECE, 3 * PIECE + 1, 4 * PIECE - 1,
                                5 * PIECE, 40000, COUNT_MAX};
enum { COUNTS = sizeof counts / sizeof *counts };

static void check_sums(const trainers *all) {
    for (int rank = 0; rank < all->count; rank++) {
        const trainer *self = all->each[rank];
        for (size_t i = 0; i < COUNT_MAX; i++) {
            float sum = 0;
            for (int other = 0; other < all->count; other++) {
                sum += trainer_value(other, i);
            }
            if (self->data[i] != (i < all->elements ? sum : -1.0f)) {
                fail_msg("rank %d of %d: element %zu of %zu: %g", rank, all->count, i, all->elements,
                         (double)self->data[i]);
            }
        }
    }
}

/* What a rank adds up itself it need not copy, but where it has to, result follows upon copy. */
static void check_calls(const trainer *self) {
    for (size_t i = 0; i < self->all->elements; i++) {
        const bool is_right = trainer_adds(self, i) ? self->encoded[i] == self->decoded[i] && self->encoded[i] <= 1
                                                    : self->encoded[i] == 1 && self->decoded[i] == 1;
        if (!is_right) {
            fail_msg("element %zu of %zu went in %u times and came out %u times", i, self->all->elements,
                     self->encoded[i], self->decoded[i]);
        }
    }
}

static void sum_and_check(trainers *all, size_t elements) {
    trainers_fill(all, elements);
    trainers_sum(all);
    check_sums(all);
    for (int rank = 0; rank < all->count; rank++) {
        if (!all->each[rank]->is_public) {
            check_calls(all->each[rank]);
        }
    }
}

static void sum_all_counts(int ranks, size_t run_max, uint32_t public_ranks) {
    trainers all;
    trainers_open(&all, ranks);
    all.run_max = run_max;
    all.random.state = run_max * 8 + (uint64_t)ranks;
    for (int rank = 0; rank < ranks; rank++) {
        all.each[rank]->is_public = (public_ranks >> rank & 1u) != 0;
    }
    for (size_t c = 0; c < COUNTS; c++) {
        sum_and_check(&all, counts[c]);
    }
    trainers_close(&all);
}

static void each_element_goes_in_once_and_comes_out_once(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= TRAINERS_MAX; ranks++) {
        sum_all_counts(ranks, 0, 0);
        sum_all_counts(ranks, COUNT_MAX, 0);
    }
}

static void runs_may_be_as_short_as_one_element(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 63, 64, 100, 5000, PIECE, PIECE + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        sum_all_counts(3, lengths[i], 0);
    }
}

static void ranks_whose_data_is_within_reach_take_part_as_they_are(void **state) {
    (void)state;
    for (uint32_t public_ranks = 1; public_ranks < 7; public_ranks++) {
        sum_all_counts(3, 100, public_ranks);
    }
}

static void what_a_rank_adds_up_itself_is_not_copied_where_it_lies_in_a_row(void **state) {
    (void)state;
    trainers all;
    trainers_open(&all, 2);
    all.run_max = COUNT_MAX;
    sum_and_check(&all, 40000);
    for (int rank = 0; rank < 2; rank++) {
        for (size_t i = 0; i < all.elements; i++) {
            assert_int_equal(all.each[rank]->encoded[i], trainer_adds(all.each[rank], i) ? 0 : 1);
        }
    }
    trainers_close(&all);
}

static void nothing_is_asked_of_a_rank_without_elements(void **state) {
    (void)state;
    trainers all;
    trainers_open(&all, 3);
    sum_and_check(&all, 0);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(all.each[rank]->encoded[0] + all.each[rank]->decoded[0], 0);
        assert_false(gs_lane_last_outcome(all.each[rank]->lane)->is_data_touched);
    }
    sum_and_check(&all, 40000);
    trainers_close(&all);
}

/* It does not go in, but the result comes out. */
static void a_rank_that_contributes_nothing_is_not_read(void **state) {
    (void)state;
    trainers all;
    trainers_open(&all, 3);
    trainers_fill(&all, 40000);
    for (int rank = 0; rank < 3; rank++) {
        gs_lane_operation operation = trainer_operation(all.each[rank]);
        operation.contributes = rank != 1;
        trainer_post(all.each[rank], &operation);
    }
    trainers_move(&all);
    for (size_t i = 0; i < all.elements; i++) {
        const float sum = trainer_value(0, i) + trainer_value(2, i);
        assert_true(all.each[0]->data[i] == sum && all.each[1]->data[i] == sum && all.each[2]->data[i] == sum);
        assert_int_equal(all.each[1]->encoded[i], 0);
        assert_int_equal(all.each[1]->decoded[i], 1);
    }
    trainers_close(&all);
}

/* ---- failures ---- */

static void assert_untouched(const trainer *self, int rank) {
    assert_false(gs_lane_last_outcome(self->lane)->is_data_touched);
    for (size_t i = 0; i < self->all->elements; i++) {
        assert_int_equal(self->decoded[i], 0);
        assert_true(self->data[i] == trainer_value(rank, i));
    }
}

static void a_refusal_leaves_all_data_as_it_is(void **state) {
    (void)state;
    trainers all;
    trainers_open(&all, 3);
    all.run_max = 100;
    trainers_fill(&all, 40000);
    all.end = GSYNC_ERR_INCOMPLETE;
    for (int rank = 0; rank < 3; rank++) {
        gs_lane_operation operation = trainer_operation(all.each[rank]);
        operation.verdict = rank == 1 ? GSYNC_ERR_INCOMPLETE : GSYNC_OK;
        trainer_post(all.each[rank], &operation);
    }
    trainers_move(&all);
    for (int rank = 0; rank < 3; rank++) {
        assert_untouched(all.each[rank], rank);
    }
    all.end = GSYNC_OK;
    sum_and_check(&all, 40000);
    trainers_close(&all);
}

static void post_all(trainers *all) {
    trainers_fill(all, 40000);
    for (int rank = 0; rank < all->count; rank++) {
        const gs_lane_operation operation = trainer_operation(all->each[rank]);
        trainer_post(all->each[rank], &operation);
    }
}

static void expect_aborted(trainer *self) {
    self->all->end = GSYNC_ERR_ABORTED;
    self->is_through = false;
    move_one(self);
    assert_true(self->is_through);
}

/* Rank 1 goes as far as it gets alone: what it adds up itself of the first pieces holds the result by then. */
static void data_counts_as_touched_once_something_was_written_into_it(void **state) {
    (void)state;
    trainers all;
    bool did_work;
    trainers_open(&all, 2);
    all.run_max = COUNT_MAX;
    post_all(&all);
    all.each[0]->is_moving = true; /* nor in the middle of rank 1's calls */
    assert_false(gs_lane_last_outcome(all.each[1]->lane)->is_data_touched);
    assert_int_equal(gs_lane_progress(all.each[1]->lane, &all.each[1]->is_through, &did_work), GSYNC_OK);
    assert_false(all.each[1]->is_through);
    assert_true(gs_lane_last_outcome(all.each[1]->lane)->is_data_touched);
    all.each[0]->is_moving = false;
    gs_lane_give_up(all.each[1]->lane, GSYNC_ERR_ABORTED, "the test");
    expect_aborted(all.each[0]);
    trainers_close(&all);
}

static void data_is_touched_too_where_a_rank_only_takes_what_others_add_up(void **state) {
    (void)state;
    trainers all;
    trainers_open(&all, 2);
    sum_and_check(&all, 1);
    assert_false(trainer_adds(all.each[1], 0));
    assert_true(gs_lane_last_outcome(all.each[1]->lane)->is_data_touched);
    trainers_close(&all);
}

static void data_is_untouched_where_the_operation_ended_before_anything_was_written(void **state) {
    (void)state;
    trainers all;
    trainers_open(&all, 2);
    trainers_fill(&all, 40000);
    const gs_lane_operation operation = trainer_operation(all.each[0]);
    trainer_post(all.each[0], &operation);
    move_one(all.each[0]);
    assert_false(all.each[0]->is_through);
    gs_lane_give_up(all.each[1]->lane, GSYNC_ERR_ABORTED, "the test");
    expect_aborted(all.each[0]);
    assert_untouched(all.each[0], 0);
    trainers_close(&all);
}

/* ---- who is late ---- */

/* Rank 2's data is within reach, and it stands still. The rings of the others are full soon, which is not their doing.
 */
static void a_rank_that_stands_still_is_the_one_that_is_late(void **state) {
    (void)state;
    trainers all;
    trainers_open(&all, 3);
    all.each[2]->is_public = true;
    post_all(&all);
    all.each[2]->is_moving = true;
    for (int i = 0; i < 10; i++) {
        move_one(all.each[0]);
        move_one(all.each[1]);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(all.each[rank]->lane->flow.packed, GS_FLOW_DEPTH);
        for (int other = 0; other < 3; other++) {
            assert_int_equal(gs_lane_flow_waits_for(all.each[rank]->lane, other), other == 2);
        }
    }
    all.each[2]->is_moving = false;
    gs_lane_give_up(all.each[2]->lane, GSYNC_ERR_ABORTED, "the test");
    expect_aborted(all.each[0]);
    expect_aborted(all.each[1]);
    trainers_close(&all);
}

/* ---- very many pieces ---- */

/* As if so many pieces had flowed. */
static void set_base(trainers *all, uint32_t base) {
    for (int rank = 0; rank < all->count; rank++) {
        gs_lane *lane = all->each[rank]->lane;
        lane->flow.base = base;
        atomic_store(&gs_lane_own_flags(lane)->packed, base);
        atomic_store(&gs_lane_own_flags(lane)->added, base);
    }
}

static void the_number_of_pieces_may_wrap_around(void **state) {
    (void)state;
    static const uint32_t bases[] = {UINT32_MAX, UINT32_MAX - 2, UINT32_MAX - 9, INT32_MAX, (uint32_t)INT32_MAX - 3};
    for (size_t b = 0; b < sizeof bases / sizeof *bases; b++) {
        trainers all;
        trainers_open(&all, 3);
        all.run_max = 100;
        set_base(&all, bases[b]);
        for (int i = 0; i < 4; i++) {
            sum_and_check(&all, 40000); /* five pieces */
        }
        assert_int_equal(all.each[0]->lane->flow.base, (uint32_t)(bases[b] + 20u));
        trainers_close(&all);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_goes_in_once_and_comes_out_once),
        cmocka_unit_test(runs_may_be_as_short_as_one_element),
        cmocka_unit_test(ranks_whose_data_is_within_reach_take_part_as_they_are),
        cmocka_unit_test(what_a_rank_adds_up_itself_is_not_copied_where_it_lies_in_a_row),
        cmocka_unit_test(nothing_is_asked_of_a_rank_without_elements),
        cmocka_unit_test(a_rank_that_contributes_nothing_is_not_read),
        cmocka_unit_test(a_refusal_leaves_all_data_as_it_is),
        cmocka_unit_test(data_counts_as_touched_once_something_was_written_into_it),
        cmocka_unit_test(data_is_touched_too_where_a_rank_only_takes_what_others_add_up),
        cmocka_unit_test(data_is_untouched_where_the_operation_ended_before_anything_was_written),
        cmocka_unit_test(a_rank_that_stands_still_is_the_one_that_is_late),
        cmocka_unit_test(the_number_of_pieces_may_wrap_around),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
