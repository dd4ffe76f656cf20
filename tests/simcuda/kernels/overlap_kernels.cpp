/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels of benchmarks/overlap_cuda, compiled for the host. */

#include "host_launch.h"

#include "overlap_cuda/overlap_kernels.cu"
