/* SPDX-License-Identifier: Apache-2.0 */
#define GS_CUDA_LAUNCH "null_launch.h"
#include "device/device_cuda_kernels.cu"
