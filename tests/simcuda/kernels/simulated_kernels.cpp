/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels, compiled for the host. */

#include "device/device_cuda_kernels.cu"
