/* SPDX-License-Identifier: Apache-2.0 */
#include "base/kernels.h"

#define GS_KERNELS_TABLE gs_kernels_plain
#define GS_KERNELS_NAME "plain"
#include "base/kernels_body.h"
