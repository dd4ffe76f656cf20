/* SPDX-License-Identifier: Apache-2.0 */
#define GS_CUDA_PHASES "null_launch.h"
#include "device/topk_cuda_kernels.cu"
