/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels of the wire TOPK, compiled for the host. */

#define GS_CUDA_PHASES "simulated_phases.h"
#include "device/topk_cuda_kernels.cu"
