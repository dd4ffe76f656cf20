/* SPDX-License-Identifier: Apache-2.0 */
#include "base/kernels.h"

#include <math.h>

/* A power of two whose reciprocal is a normal float32. */
static bool has_exact_reciprocal(double value) {
    int exponent; /* value = 2^(exponent - 1) */
    return frexp(value, &exponent) == 0.5 && exponent >= -126 && exponent <= 127;
}

gs_division gs_division_by(double divisor) {
    if (has_exact_reciprocal(divisor)) {
        return (gs_division){GS_DIVIDE_EXACTLY, 1.0 / divisor};
    }
    /* A weight total that float32 cannot hold: dividing in float64 rounds the quotient only once that matters. */
    return (gs_division){(double)(float)divisor == divisor ? GS_DIVIDE_NARROW : GS_DIVIDE_WIDE, divisor};
}

/* GS_KERNELS_AVX2 and the others come from CMake, which knows what the compiler can do. */

static const gs_kernels *avx2(void) {
#if GS_KERNELS_F16C && !defined(__clang_analyzer__) /* which may be older than the compiler and not know the name */
    /* F16C is asked for by itself: a virtual machine may hide it. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? &gs_kernels_avx2 : NULL;
#elif GS_KERNELS_AVX2
    return __builtin_cpu_supports("avx2") ? &gs_kernels_avx2 : NULL;
#else
    return NULL;
#endif
}

static const gs_kernels *avx512(void) {
#if GS_KERNELS_AVX512
    const bool has_all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has_all ? &gs_kernels_avx512 : NULL;
#else
    return NULL;
#endif
}

const gs_kernels *gs_kernels_get(gs_isa isa) {
    switch (isa) {
    case GS_ISA_PLAIN:
        return &gs_kernels_plain;
    case GS_ISA_AVX2:
        return avx2();
    case GS_ISA_AVX512:
        return avx512();
    case GS_ISA_COUNT:
        break;
    }
    return NULL;
}

const gs_kernels *gs_kernels_best(void) {
    const gs_kernels *const wide = avx512();
    const gs_kernels *const narrow = wide != NULL ? wide : avx2();
    return narrow != NULL ? narrow : &gs_kernels_plain;
}
