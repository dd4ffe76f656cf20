/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */
#include "opened_ranks.h"

#include <math.h>

/* What is queued on streams, against sums made one after the other. */

static const int worlds[] = {1, 2, 4, 8};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

static const size_t counts[] = {1, 7, 1000, 20011};
enum { COUNTS = sizeof counts / sizeof counts[0], COUNT_MAX = 20011 };

typedef struct buffers {
    float *device; /* ranks * COUNT_MAX elements */
    float *other;
    float *host;
} buffers;

static float value_of(int rank, size_t i) {
    return (float)((int)(i % 37) - 18) * (float)(rank + 1);
}

static size_t bytes_of(const opened_rank *self) {
    return (size_t)self->ranks * COUNT_MAX * sizeof(float);
}

static void open_all(opened_rank *self, buffers *b) {
    CHECK_STATUS(open_nccl(self), GSYNC_OK);
    CHECK_STATUS(gs_cuda_new(self->cuda, (void **)&b->device, bytes_of(self), "device"), GSYNC_OK);
    CHECK_STATUS(gs_cuda_new(self->cuda, (void **)&b->other, bytes_of(self), "other"), GSYNC_OK);
    CHECK_STATUS(gs_cuda_pinned_new(self->cuda, (void **)&b->host, bytes_of(self), "host"), GSYNC_OK);
}

static void close_all(opened_rank *self, buffers *b) {
    gs_cuda_free(self->cuda, b->device);
    gs_cuda_free(self->cuda, b->other);
    gs_cuda_pinned_free(self->cuda, b->host);
}

/* All of this rank's values, ranks * count of them, onto the device. */
static void put(opened_rank *self, buffers *b, size_t count) {
    for (size_t i = 0; i < count * (size_t)self->ranks; i++) {
        b->host[i] = value_of(self->rank, i);
    }
    CHECK_STATUS(
        gs_cuda_copy(self->cuda, b->device, b->host, count * (size_t)self->ranks * sizeof(float), self->stream),
        GSYNC_OK);
}

static const float *get(opened_rank *self, buffers *b, const float *from, size_t count) {
    CHECK_STATUS(gs_cuda_copy(self->cuda, b->host, from, count * sizeof(float), self->stream), GSYNC_OK);
    CHECK_STATUS(wait_for_stream(self), GSYNC_OK);
    return b->host;
}

static void check_all_reduce(opened_rank *self, buffers *b, size_t count, double factor) {
    put(self, b, count);
    CHECK_STATUS(gs_nccl_all_reduce(self->nccl, b->device, count, GSYNC_FLOAT32, factor, self->stream), GSYNC_OK);
    const float *values = get(self, b, b->device, count);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += values[i] != value_of(0, i) * (float)(self->ranks * (self->ranks + 1) / 2) * (float)factor;
    }
    CHECK(wrong == 0);
}

static void check_all_to_all(opened_rank *self, buffers *b, size_t count) {
    put(self, b, count);
    CHECK_STATUS(gs_nccl_all_to_all(self->nccl, b->device, b->other, count * sizeof(float), self->stream), GSYNC_OK);
    const float *values = get(self, b, b->other, count * (size_t)self->ranks);
    size_t wrong = 0;
    for (size_t i = 0; i < count * (size_t)self->ranks; i++) {
        wrong += values[i] != value_of((int)(i / count), (size_t)self->rank * count + i % count);
    }
    CHECK(wrong == 0);
}

static void check_all_gather(opened_rank *self, buffers *b, size_t count) {
    put(self, b, count);
    CHECK_STATUS(gs_nccl_all_gather(self->nccl, b->device, count * sizeof(float), self->stream), GSYNC_OK);
    const float *values = get(self, b, b->device, count * (size_t)self->ranks);
    size_t wrong = 0;
    for (size_t i = 0; i < count * (size_t)self->ranks; i++) {
        wrong += values[i] != value_of((int)(i / count), i);
    }
    CHECK(wrong == 0);
}

static void check_broadcast(opened_rank *self, buffers *b, size_t count) {
    const int root = self->ranks - 1;
    put(self, b, count);
    CHECK_STATUS(gs_nccl_broadcast(self->nccl, b->device, count * sizeof(float), root, self->stream), GSYNC_OK);
    const float *values = get(self, b, b->device, count);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += values[i] != value_of(root, i);
    }
    CHECK(wrong == 0);
}

static void run_all(opened_rank *self) {
    buffers b;
    open_all(self, &b);
    for (size_t c = 0; c < COUNTS; c++) {
        check_all_reduce(self, &b, counts[c], 1);
        check_all_to_all(self, &b, counts[c]);
        check_all_gather(self, &b, counts[c]);
        check_broadcast(self, &b, counts[c]);
    }
    close_all(self, &b);
}

static void collectives_agree_with_a_serial_oracle(void **state) {
    (void)state;
    for (size_t w = 0; w < WORLDS; w++) {
        simcuda_reset();
        simcuda_polls(3);
        run_opened_ranks(worlds[w], NULL, run_all);
        expect_nothing_left();
        expect_sound();
    }
}

static void run_without_all_to_all(opened_rank *self) {
    buffers b;
    open_all(self, &b);
    gs_nccl_library older = *self->nccl->library;
    const gs_nccl_library *whole = self->nccl->library;
    older.all_to_all = NULL;
    self->nccl->library = &older;
    check_all_to_all(self, &b, 1000);
    self->nccl->library = whole;
    close_all(self, &b);
}

static void all_to_all_does_without_the_call_that_older_libraries_lack(void **state) {
    (void)state;
    simcuda_reset();
    run_opened_ranks(4, NULL, run_without_all_to_all);
    assert_int_equal(simcuda_calls("ncclAlltoAll"), 0);
    assert_int_equal(simcuda_calls("ncclSend"), 16);
    expect_sound();
}

static void run_factors(opened_rank *self) {
    buffers b;
    open_all(self, &b);
    for (int round = 0; round < 3; round++) {
        check_all_reduce(self, &b, 1000, 0.25);
    }
    CHECK(self->nccl->op_count == 1);
    /* More than are kept. */
    for (int exponent = -20; exponent < 0; exponent++) {
        check_all_reduce(self, &b, 100, ldexp(1, exponent));
    }
    check_all_reduce(self, &b, 1000, 0.25);
    CHECK(self->nccl->op_count == GS_NCCL_OPS_MAX);
    close_all(self, &b);
}

static void a_factor_multiplies_first_and_its_operation_is_kept(void **state) {
    (void)state;
    simcuda_reset();
    run_opened_ranks(2, NULL, run_factors);
    assert_int_equal(simcuda_calls("ncclRedOpCreatePreMulSum"), 2 * (1 + 20 + 1 - 1));
    expect_sound();
}

/* 1 of each rank, in the type's own bits; the sum is the number of ranks. */
static void check_bits(opened_rank *self, buffers *b, gsync_dtype dtype, uint16_t one, double factor, uint16_t sum) {
    uint16_t *values = (uint16_t *)(void *)b->host;
    values[0] = one;
    CHECK_STATUS(gs_cuda_copy(self->cuda, b->device, values, sizeof *values, self->stream), GSYNC_OK);
    CHECK_STATUS(gs_nccl_all_reduce(self->nccl, b->device, 1, dtype, factor, self->stream), GSYNC_OK);
    CHECK_STATUS(gs_cuda_copy(self->cuda, values, b->device, sizeof *values, self->stream), GSYNC_OK);
    CHECK_STATUS(wait_for_stream(self), GSYNC_OK);
    CHECK(values[0] == sum);
}

static void run_halves(opened_rank *self) {
    buffers b;
    open_all(self, &b);
    check_bits(self, &b, GSYNC_FLOAT16, 0x3C00, 0.25, 0x3C00);
    check_bits(self, &b, GSYNC_FLOAT16, 0x7800, 0x1p-24, 0x2000); /* 32768 four times: 2^17 * 2^-24 = 2^-7 */
    check_bits(self, &b, GSYNC_BFLOAT16, 0x3F80, 0.25, 0x3F80);
    check_bits(self, &b, GSYNC_BFLOAT16, 0x3F80, 0x1p-100, 0x0E80); /* 2^-98 */
    close_all(self, &b);
}

static void factors_are_exact_in_short_types_too(void **state) {
    (void)state;
    simcuda_reset();
    run_opened_ranks(4, NULL, run_halves);
}

static void refuse_factors(opened_rank *self) {
    buffers b;
    open_all(self, &b);
    CHECK_STATUS(gs_nccl_all_reduce(self->nccl, b.device, 1, GSYNC_FLOAT32, 1.0 / 3, self->stream), GSYNC_ERR_INTERNAL);
    CHECK_STATUS(gs_nccl_all_reduce(self->nccl, b.device, 1, GSYNC_FLOAT16, 0x1p-30, self->stream), GSYNC_ERR_INTERNAL);
    check_all_reduce(self, &b, 100, 1);
    close_all(self, &b);
}

static void a_factor_that_would_round_is_refused(void **state) {
    (void)state;
    simcuda_reset();
    run_opened_ranks(2, NULL, refuse_factors);
}

/* The communicator is asked often before a call has happened, so a record that did not wait would miss it. */
static void an_event_that_is_recorded_after_a_call_waits_for_its_work(void **state) {
    (void)state;
    simcuda_reset();
    simcuda_polls(200);
    run_opened_ranks(4, NULL, run_all);
    expect_sound();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_agree_with_a_serial_oracle),
        cmocka_unit_test(all_to_all_does_without_the_call_that_older_libraries_lack),
        cmocka_unit_test(a_factor_multiplies_first_and_its_operation_is_kept),
        cmocka_unit_test(factors_are_exact_in_short_types_too),
        cmocka_unit_test(a_factor_that_would_round_is_refused),
        cmocka_unit_test(an_event_that_is_recorded_after_a_call_waits_for_its_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
