/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */
#include "nccl_ranks.h"

/* The communicator's own calls, on host memory, over NCCL alone. */

static const int worlds[] = {1, 2, 4, 8};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

/* Less than one element for each, one phase, two phases, several pieces, several calls; not a multiple of anything. */
static const size_t counts[] = {0, 1, 7, 3001, 40009, 150001};
enum { COUNTS = sizeof counts / sizeof counts[0], COUNT_MAX = 150001 };

static void over_all_worlds(nccl_rank_function *function) {
    for (size_t w = 0; w < WORLDS; w++) {
        simcuda_reset();
        simcuda_polls(2);
        run_nccl_ranks(worlds[w], NULL, function);
        expect_nothing_left();
        expect_sound();
    }
}

static float value_of(int rank, size_t i) {
    return (float)((int)(i % 41) - 20) * (float)(rank + 1);
}

static void know_each_other(nccl_rank *self) {
    CHECK(gsync_rank(self->comm) == self->rank);
    CHECK(gsync_world_size(self->comm) == self->ranks);
    CHECK(gsync_local_rank(self->comm) == self->rank);
    CHECK(strstr(gsync_comm_describe(self->comm), "nccl") != NULL);
    CHECK(strstr(gsync_comm_describe(self->comm), "on 1 host,") != NULL);
}

static void ranks_know_their_number_and_their_place_on_the_machine(void **state) {
    (void)state;
    over_all_worlds(know_each_other);
}

static void reduce_all(nccl_rank *self) {
    float *values = malloc(COUNT_MAX * sizeof *values);
    for (size_t c = 0; c < COUNTS; c++) {
        for (size_t i = 0; i < counts[c]; i++) {
            values[i] = value_of(self->rank, i);
        }
        CHECK_STATUS(gsync_allreduce(self->comm, values, counts[c], GSYNC_FLOAT32, GSYNC_SUM), GSYNC_OK);
        size_t wrong = 0;
        for (size_t i = 0; i < counts[c]; i++) {
            wrong += values[i] != value_of(0, i) * (float)(self->ranks * (self->ranks + 1) / 2);
        }
        CHECK(wrong == 0);
    }
    free(values);
}

static void allreduce_gives_the_serial_sum(void **state) {
    (void)state;
    over_all_worlds(reduce_all);
}

static void take_extremes(nccl_rank *self) {
    int64_t values[3] = {self->rank, -self->rank, 7};
    CHECK_STATUS(gsync_allreduce(self->comm, values, 3, GSYNC_INT64, GSYNC_MAX), GSYNC_OK);
    CHECK(values[0] == self->ranks - 1 && values[1] == 0 && values[2] == 7);
    double mean = self->rank;
    CHECK_STATUS(gsync_allreduce(self->comm, &mean, 1, GSYNC_FLOAT64, GSYNC_MEAN), GSYNC_OK);
    CHECK(mean == (self->ranks - 1) / 2.0);
}

static void allreduce_gives_maximum_and_mean(void **state) {
    (void)state;
    over_all_worlds(take_extremes);
}

static void broadcast_all(nccl_rank *self) {
    unsigned char *bytes = malloc(COUNT_MAX);
    for (int root = 0; root < self->ranks; root++) {
        for (size_t c = 0; c < COUNTS; c++) {
            for (size_t i = 0; i < counts[c]; i++) {
                bytes[i] = (unsigned char)(self->rank == root ? i * 7 + (size_t)root : 0);
            }
            CHECK_STATUS(gsync_broadcast(self->comm, bytes, counts[c], GSYNC_UINT8, root), GSYNC_OK);
            size_t wrong = 0;
            for (size_t i = 0; i < counts[c]; i++) {
                wrong += bytes[i] != (unsigned char)(i * 7 + (size_t)root);
            }
            CHECK(wrong == 0);
        }
    }
    free(bytes);
}

static void broadcast_gives_everybody_what_the_root_has(void **state) {
    (void)state;
    over_all_worlds(broadcast_all);
}

static void agree_and_compare(nccl_rank *self) {
    int all = -1;
    CHECK_STATUS(gsync_barrier(self->comm), GSYNC_OK);
    CHECK_STATUS(gsync_all_done(self->comm, self->rank != 0, &all), GSYNC_OK);
    CHECK(all == 0);
    CHECK_STATUS(gsync_all_done(self->comm, 1, &all), GSYNC_OK);
    CHECK(all == 1);

    const char *names[] = {"weights"};
    int value = 5;
    const void *buffer = &value;
    const size_t bytes = sizeof value;
    CHECK_STATUS(gsync_check_replicas(self->comm, names, &buffer, &bytes, 1), GSYNC_OK);
    value += self->rank == self->ranks - 1;
    CHECK_STATUS(gsync_check_replicas(self->comm, names, &buffer, &bytes, 1),
                 self->ranks > 1 ? GSYNC_ERR_MISMATCH : GSYNC_OK);
}

static void ranks_meet_agree_and_compare_replicas(void **state) {
    (void)state;
    over_all_worlds(agree_and_compare);
}

static void disagree(nccl_rank *self) {
    float values[4] = {0};
    const size_t count = self->rank == 1 ? 3 : 4;
    CHECK_STATUS(gsync_allreduce(self->comm, values, count, GSYNC_FLOAT32, GSYNC_SUM), GSYNC_ERR_MISMATCH);
    CHECK_SAYS("rank 1 has 3 elements, rank 0 has 4");
    CHECK_STATUS(gsync_barrier(self->comm), GSYNC_OK);
}

static void ranks_that_disagree_are_told_and_can_go_on(void **state) {
    (void)state;
    simcuda_reset();
    run_nccl_ranks(4, NULL, disagree);
    expect_nothing_left();
}

static void use_part(nccl_rank *self, gsync_comm *part, int ranks) {
    int sum = self->rank;
    CHECK(gsync_world_size(part) == ranks);
    CHECK_STATUS(gsync_allreduce(part, &sum, 1, GSYNC_INT32, GSYNC_SUM), GSYNC_OK);
    /* Of 0, 2, .. or of 1, 3, .. */
    CHECK(sum == ranks * (self->rank % 2) + ranks * (ranks - 1));
}

static void split_in_two(nccl_rank *self) {
    gsync_comm *part = NULL;
    CHECK_STATUS(gsync_comm_split(self->comm, self->rank % 2, -self->rank, &part), GSYNC_OK);
    CHECK(part != NULL);
    /* By the key, the highest comes first. */
    const int ranks = self->ranks / 2;
    CHECK(gsync_rank(part) == ranks - 1 - self->rank / 2);
    use_part(self, part, ranks);
    CHECK_STATUS(gsync_barrier(self->comm), GSYNC_OK);
    gsync_comm_destroy(&part);
}

static void a_group_can_be_split_by_color_and_key(void **state) {
    (void)state;
    simcuda_reset();
    run_nccl_ranks(8, NULL, split_in_two);
    expect_nothing_left();
    expect_sound();
}

static void leave_one_out(nccl_rank *self) {
    gsync_comm *part = NULL;
    CHECK_STATUS(gsync_comm_split(self->comm, self->rank == 1 ? -1 : 0, 0, &part), GSYNC_OK);
    CHECK((part == NULL) == (self->rank == 1));
    CHECK(gsync_world_size(part) == (self->rank == 1 ? 0 : 2));
    if (part != NULL) {
        CHECK_STATUS(gsync_barrier(part), GSYNC_OK);
    }
    gsync_comm_destroy(&part);
}

static void a_rank_may_belong_to_no_part(void **state) {
    (void)state;
    simcuda_reset();
    run_nccl_ranks(3, NULL, leave_one_out);
    expect_nothing_left();
}

/* One gradient in host memory, reduced through a lane of the reducer's own. */
static void train(nccl_rank *self) {
    static const size_t COUNT = 70001;
    gsync_reducer *reducer = NULL;
    float *grad = malloc(COUNT * sizeof *grad);
    CHECK_STATUS(gsync_reducer_create(&reducer, self->comm, NULL), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_add(reducer, "grad", grad, COUNT, GSYNC_FLOAT32), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_OK);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < COUNT; i++) {
            grad[i] = value_of(self->rank, i + (size_t)step);
        }
        CHECK_STATUS(gsync_begin(reducer, GSYNC_SYNC), GSYNC_OK);
        CHECK_STATUS(gsync_ready(reducer, grad), GSYNC_OK);
        CHECK_STATUS(gsync_finish(reducer, NULL), GSYNC_OK);
        size_t wrong = 0;
        for (size_t i = 0; i < COUNT; i++) {
            wrong += grad[i] != value_of(0, i + (size_t)step) * (float)(self->ranks + 1) / 2;
        }
        CHECK(wrong == 0);
    }
    gsync_reducer_destroy(&reducer);
    free(grad);
}

static void gradients_in_host_memory_are_reduced_over_nccl_too(void **state) {
    (void)state;
    over_all_worlds(train);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_know_their_number_and_their_place_on_the_machine),
        cmocka_unit_test(allreduce_gives_the_serial_sum),
        cmocka_unit_test(allreduce_gives_maximum_and_mean),
        cmocka_unit_test(broadcast_gives_everybody_what_the_root_has),
        cmocka_unit_test(ranks_meet_agree_and_compare_replicas),
        cmocka_unit_test(ranks_that_disagree_are_told_and_can_go_on),
        cmocka_unit_test(a_group_can_be_split_by_color_and_key),
        cmocka_unit_test(a_rank_may_belong_to_no_part),
        cmocka_unit_test(gradients_in_host_memory_are_reduced_over_nccl_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
