/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels, compiled for the host. */

#define GS_CUDA_LAUNCH "simulated_launch.h"
#include "device/device_cuda_kernels.cu"
