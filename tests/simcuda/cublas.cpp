/* SPDX-License-Identifier: Apache-2.0 */

/* As much of cuBLAS as the examples and benchmarks use: products of float32 matrices, column by column, on a stream. */

#include "control.h"
#include "simcuda.h"

#include <cublas_v2.h>
#include <vector>

struct cublasContext {
    cudaStream_t stream = nullptr; /* the legacy default stream, as with the real one */
};

namespace {

struct Matrix {
    const float *start;
    int rows;
    int columns;
    int pitch; /* from one column to the next */
    bool is_transposed;

    size_t place(int row, int column) const {
        const int major = is_transposed ? row : column;
        const int minor = is_transposed ? column : row;
        return static_cast<size_t>(major) * static_cast<size_t>(pitch) + static_cast<size_t>(minor);
    }
};

/* Rows and columns are those of the factor, not of what lies in memory. */
Matrix factor(const float *start, int rows, int columns, int pitch, cublasOperation_t how) {
    return {start, rows, columns, pitch, how != CUBLAS_OP_N};
}

bool is_sound(const Matrix &m) {
    const int least = m.is_transposed ? m.columns : m.rows;
    return m.rows >= 0 && m.columns >= 0 && m.pitch >= (least > 1 ? least : 1);
}

struct Product {
    Matrix a;
    Matrix b;
    Matrix c;
    float alpha;
    float beta;
};

/* Column by column where something lies between them. */
void touch(std::vector<simcuda_access> *accesses, const Matrix &m, bool is_write) {
    const auto length = static_cast<size_t>(m.is_transposed ? m.columns : m.rows);
    const auto lines = static_cast<size_t>(m.is_transposed ? m.rows : m.columns);
    const auto pitch = static_cast<size_t>(m.pitch);
    const bool is_dense = pitch == length || lines <= 1;
    for (size_t line = 0; line < (is_dense ? 1 : lines) && length > 0 && lines > 0; line++) {
        const size_t count = is_dense ? length * lines : length;
        accesses->push_back({m.start + line * pitch, count * sizeof(float), is_write ? 1 : 0});
    }
}

std::vector<simcuda_access> touched(const Product &of) {
    std::vector<simcuda_access> accesses;
    touch(&accesses, of.a, false);
    touch(&accesses, of.b, false);
    if (of.beta != 0.0f) {
        touch(&accesses, of.c, false);
    }
    touch(&accesses, of.c, true);
    return accesses;
}

/* As with BLAS, what c holds is not looked at where beta is 0: it may be NaN. */
void multiply(void *arguments) {
    const Product &of = *static_cast<const Product *>(arguments);
    for (const simcuda_access &access : touched(of)) {
        simcuda::declare_access(access.start, access.bytes, access.is_write != 0);
    }
    auto *const c = const_cast<float *>(of.c.start);
    for (int column = 0; column < of.c.columns; column++) {
        for (int row = 0; row < of.c.rows; row++) {
            float sum = 0.0f;
            for (int k = 0; k < of.a.columns; k++) {
                sum += of.a.start[of.a.place(row, k)] * of.b.start[of.b.place(k, column)];
            }
            float &to = c[of.c.place(row, column)];
            to = of.beta == 0.0f ? of.alpha * sum : of.alpha * sum + of.beta * to;
        }
    }
}

} // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    int device = 0;
    if (handle == nullptr || cudaGetDevice(&device) != cudaSuccess || simcuda::settings().device_count == 0) {
        return handle == nullptr ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *handle = new cublasContext;
    simcuda::count_object(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    if (handle == nullptr) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    delete handle;
    simcuda::count_object(-1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    if (handle == nullptr) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                              int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                              const float *beta, float *C, int ldc) {
    if (handle == nullptr) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    const Product product = {factor(A, m, k, lda, transa), factor(B, k, n, ldb, transb),
                             factor(C, m, n, ldc, CUBLAS_OP_N), *alpha, *beta};
    if (!is_sound(product.a) || !is_sound(product.b) || !is_sound(product.c)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (m == 0 || n == 0) {
        return CUBLAS_STATUS_SUCCESS;
    }
    const auto accesses = touched(product);
    const cudaError_t error = simcuda_launch(handle->stream, multiply, &product, sizeof product, "cublasSgemm",
                                             accesses.data(), accesses.size());
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

const char *cublasGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the GPU program failed to execute";
    default:
        return "unknown error";
    }
}

} // extern "C"
