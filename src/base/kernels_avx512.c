/* SPDX-License-Identifier: Apache-2.0 */
#include "base/kernels.h"

/* CMake compiles this for AVX-512 where the compiler knows it. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define GS_KERNELS_TABLE gs_kernels_avx512
#define GS_KERNELS_NAME "avx512"
#include "base/kernels_body.h"
#endif
