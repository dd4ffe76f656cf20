/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_MLP_CHECK_H
#define CUDA_MLP_CHECK_H

/* What went wrong, in words on stderr. */

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <gradsync/gradsync.h>

#include <stdbool.h>

/* Which rank complains: -1, not known yet, at first. */
void check_set_rank(int rank);

/* Always false, to be returned at once. */
bool check_fail(const char *format, ...);

/* True if the call succeeded; else says so. */
bool check_cuda(cudaError_t error, const char *what);
bool check_cublas(cublasStatus_t status, const char *what);
bool check_gsync(gsync_status status);

#endif
