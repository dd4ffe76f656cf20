/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>

static int speaking_rank = -1;

void check_set_rank(int rank) {
    speaking_rank = rank;
}

bool check_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (speaking_rank >= 0) {
        fprintf(stderr, "rank %d: ", speaking_rank);
    }
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    return false;
}

bool check_cuda(cudaError_t error, const char *what) {
    return error == cudaSuccess || check_fail("%s: CUDA says %s", what, cudaGetErrorString(error));
}

bool check_cublas(cublasStatus_t status, const char *what) {
    return status == CUBLAS_STATUS_SUCCESS || check_fail("%s: cuBLAS says %s", what, cublasGetStatusString(status));
}

bool check_gsync(gsync_status status) {
    return status == GSYNC_OK || check_fail("%s: %s", gsync_status_name(status), gsync_last_error());
}
