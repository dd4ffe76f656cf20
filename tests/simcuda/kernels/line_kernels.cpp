/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels of examples/04_bring_your_own_nccl, compiled for the host. */

#include "host_launch.h"

#include "04_bring_your_own_nccl/line.cu"
