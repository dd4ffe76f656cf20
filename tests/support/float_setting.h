/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FLOAT_SETTING_H
#define FLOAT_SETTING_H

/* What a trainer may have done to this thread's floating-point unit. */

#include <fenv.h>
#include <float.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#define HAS_FLUSHING 1
#else
#define HAS_FLUSHING 0
#endif
#if defined(__GLIBC__) && defined(__x86_64__)
#define HAS_TRAPS 1
#else
#define HAS_TRAPS 0
#endif

static inline void flush_subnormals(bool is_on) {
#if HAS_FLUSHING
    const unsigned both = 0x8040u; /* FTZ and DAZ */
    _mm_setcsr(is_on ? _mm_getcsr() | both : _mm_getcsr() & ~both);
#else
    (void)is_on;
#endif
}

static inline bool does_flush(void) {
    volatile float smallest = FLT_MIN;
    smallest *= 0.5f;
    uint32_t bits;
    const float value = smallest;
    memcpy(&bits, &value, sizeof bits);
    return bits == 0;
}

static inline void set_traps(bool is_on) {
#if HAS_TRAPS
    const int traps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
    if (is_on) {
        feclearexcept(FE_ALL_EXCEPT);
        feenableexcept(traps);
    } else {
        fedisableexcept(traps);
        feclearexcept(FE_ALL_EXCEPT);
    }
#else
    (void)is_on;
#endif
}

static inline int traps_now(void) {
#if HAS_TRAPS
    return fegetexcept() & (FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
#else
    return 0;
#endif
}

#endif
