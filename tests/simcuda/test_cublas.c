/* SPDX-License-Identifier: Apache-2.0 */

/* The simulated cuBLAS: products are right, and are operations on the handle's stream. */

#include "rank_threads.h"
#include "simcuda.h"

#include <cublas_v2.h>
#include <math.h>
#include <string.h>

enum { ROOM = 64 };

typedef struct bench {
    cudaStream_t stream;
    cudaStream_t other;
    cublasHandle_t cublas;
    float *a; /* on the device */
    float *b;
    float *c;
    float from[ROOM];
    float back[ROOM];
} bench;

static void open_bench(bench *t) {
    simcuda_reset();
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&t->other, cudaStreamNonBlocking));
    OK(cublasCreate(&t->cublas));
    OK(cublasSetStream(t->cublas, t->stream));
    OK(cudaMalloc((void **)&t->a, sizeof t->from));
    OK(cudaMalloc((void **)&t->b, sizeof t->from));
    OK(cudaMalloc((void **)&t->c, sizeof t->from));
    for (int i = 0; i < ROOM; i++) {
        t->from[i] = (float)(i % 7) - 3.0f;
    }
    OK(cudaMemcpyAsync(t->a, t->from, sizeof t->from, cudaMemcpyDefault, t->stream));
    OK(cudaMemcpyAsync(t->b, t->from, sizeof t->from, cudaMemcpyDefault, t->stream));
    OK(cudaMemcpyAsync(t->c, t->from, sizeof t->from, cudaMemcpyDefault, t->stream));
    OK(cudaStreamSynchronize(t->stream));
}

static void close_bench(bench *t) {
    OK(cublasDestroy(t->cublas));
    OK(cudaStreamSynchronize(t->other));
    OK(cudaStreamSynchronize(t->stream));
    OK(cudaFree(t->a));
    OK(cudaFree(t->b));
    OK(cudaFree(t->c));
    OK(cudaStreamDestroy(t->stream));
    OK(cudaStreamDestroy(t->other));
    assert_int_equal(atomic_exchange(&rank_failures, 0), 0);
    assert_int_equal(simcuda_objects(), 0);
}

static float element(const float *matrix, cublasOperation_t how, int pitch, int row, int column) {
    return how == CUBLAS_OP_N ? matrix[column * pitch + row] : matrix[row * pitch + column];
}

/* 4 x 3 from 4 x 2 and 2 x 3; columns start 5 elements apart. */
static void compare_product(bench *t, cublasOperation_t how_a, cublasOperation_t how_b, float alpha, float beta) {
    enum { M = 4, N = 3, K = 2, PITCH = 5 };
    OK(cudaMemcpyAsync(t->c, t->from, sizeof t->from, cudaMemcpyDefault, t->stream));
    OK(cublasSgemm(t->cublas, how_a, how_b, M, N, K, &alpha, t->a, PITCH, t->b, PITCH, &beta, t->c, PITCH));
    OK(cudaMemcpyAsync(t->back, t->c, sizeof t->back, cudaMemcpyDefault, t->stream));
    OK(cudaStreamSynchronize(t->stream));
    for (int i = 0; i < ROOM; i++) {
        const int row = i % PITCH;
        const int column = i / PITCH;
        float expected = t->from[i]; /* between columns and behind the last nothing changes */
        if (row < M && column < N) {
            float sum = 0.0f;
            for (int k = 0; k < K; k++) {
                sum += element(t->from, how_a, PITCH, row, k) * element(t->from, how_b, PITCH, k, column);
            }
            expected = alpha * sum + beta * t->from[i];
        }
        assert_true(t->back[i] == expected);
    }
}

static void products_are_those_of_blas(void **state) {
    bench t;
    (void)state;
    open_bench(&t);
    for (int transposes = 0; transposes < 4; transposes++) {
        const cublasOperation_t how_a = transposes % 2 == 0 ? CUBLAS_OP_N : CUBLAS_OP_T;
        const cublasOperation_t how_b = transposes / 2 == 0 ? CUBLAS_OP_N : CUBLAS_OP_T;
        compare_product(&t, how_a, how_b, 1.0f, 0.0f);
        compare_product(&t, how_a, how_b, 2.0f, 0.5f);
    }
    assert_int_equal(simcuda_launches("cublasSgemm"), 8);
    assert_int_equal(simcuda_reports(NULL, 0), 0);
    assert_int_equal(simcuda_default_stream_uses(), 0);
    close_bench(&t);
}

static void with_beta_0_what_was_there_does_not_matter(void **state) {
    const float one = 1.0f;
    const float zero = 0.0f;
    bench t;
    (void)state;
    open_bench(&t);
    OK(simcuda_poison(t.stream, t.c, sizeof t.from));
    OK(cublasSgemm(t.cublas, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, t.a, 2, t.b, 2, &zero, t.c, 2));
    OK(cudaMemcpyAsync(t.back, t.c, sizeof t.back, cudaMemcpyDefault, t.stream));
    OK(cudaStreamSynchronize(t.stream));
    assert_true(t.back[0] == (-3.0f) * (-3.0f) + (-1.0f) * (-2.0f) && isnan(t.back[4]));
    close_bench(&t);
}

/* Whoever multiplies what another stream still writes is told so. */
static void a_missing_wait_is_reported(void **state) {
    const float one = 1.0f;
    const float zero = 0.0f;
    simcuda_report report;
    bench t;
    (void)state;
    SKIP_UNDER_TSAN();
    open_bench(&t);
    OK(cudaMemsetAsync(t.b, 0, sizeof t.from, t.other));
    OK(cublasSgemm(t.cublas, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, t.a, 2, t.b, 2, &zero, t.c, 2));
    OK(cudaStreamSynchronize(t.stream));
    OK(cudaStreamSynchronize(t.other)); /* the later of both is the one that is reported */
    assert_int_equal(simcuda_reports(&report, 1), 1);
    assert_non_null(strstr(report.text, "\"cublasSgemm\""));
    assert_int_equal(report.kind, SIMCUDA_RACE);
    close_bench(&t);
}

static void what_cublas_refuses_is_refused(void **state) {
    const float one = 1.0f;
    cublasHandle_t none = NULL;
    bench t;
    (void)state;
    open_bench(&t);
    assert_int_equal(cublasSgemm(t.cublas, CUBLAS_OP_N, CUBLAS_OP_N, 4, 3, 2, &one, t.a, 3, t.b, 2, &one, t.c, 4),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasSgemm(t.cublas, CUBLAS_OP_N, CUBLAS_OP_T, 4, 3, 2, &one, t.a, 4, t.b, 2, &one, t.c, 4),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasSgemm(t.cublas, CUBLAS_OP_N, CUBLAS_OP_N, -1, 3, 2, &one, t.a, 4, t.b, 2, &one, t.c, 4),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasSgemm(none, CUBLAS_OP_N, CUBLAS_OP_N, 4, 3, 2, &one, t.a, 4, t.b, 2, &one, t.c, 4),
                     CUBLAS_STATUS_NOT_INITIALIZED);
    assert_int_equal(simcuda_all_launches(), 0);
    simcuda_set_device_count(0);
    assert_int_equal(cublasCreate(&none), CUBLAS_STATUS_NOT_INITIALIZED);
    simcuda_set_device_count(8);
    close_bench(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_blas),
        cmocka_unit_test(with_beta_0_what_was_there_does_not_matter),
        cmocka_unit_test(a_missing_wait_is_reported),
        cmocka_unit_test(what_cublas_refuses_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
