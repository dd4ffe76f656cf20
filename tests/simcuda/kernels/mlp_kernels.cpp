/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels of examples/03_cuda_mlp, compiled for the host. */

#include "host_launch.h"

#include "03_cuda_mlp/kernels.cu"
