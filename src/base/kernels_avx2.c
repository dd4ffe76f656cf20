/* SPDX-License-Identifier: Apache-2.0 */
#include "base/kernels.h"

/* CMake compiles this for AVX2 where the compiler knows it. */
#if defined(__AVX2__)
#define GS_KERNELS_TABLE gs_kernels_avx2
#define GS_KERNELS_NAME "avx2"
#include "base/kernels_body.h"
#endif
