/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_FLOAT_MODE_H
#define GS_BASE_FLOAT_MODE_H

/*
 * Arithmetic on the trainer's numbers happens between enter and leave, in IEEE's default mode, whatever the thread is
 * set to:
 *
 *  - Subnormals are not flushed. Programs built with -Ofast flush them, but not in threads that started before; the
 *    bits of a sum would depend on which thread made it.
 *  - Nothing traps. Infinities and NaN are for the trainer to find, where it looks for them.
 *  - Rounding is to nearest.
 *
 * The thread's own mode and exception flags are as before afterwards.
 */

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

/* float and double are SSE's business alone, and its control register costs a tenth of what fesetenv does. */
typedef struct gs_float_mode {
    unsigned before;
} gs_float_mode;

enum { GS_MXCSR_DEFAULT = 0x1f80 }; /* all exceptions masked, no flag set, nothing flushed, to nearest */

/* The empty statements keep arithmetic on memory from being moved across the change. */
static inline void gs_float_mode_set(unsigned mxcsr) {
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(mxcsr);
    __asm__ volatile("" ::: "memory");
}

static inline void gs_float_mode_enter(gs_float_mode *mode) {
    mode->before = _mm_getcsr();
    gs_float_mode_set(GS_MXCSR_DEFAULT);
}

static inline void gs_float_mode_leave(const gs_float_mode *mode) {
    gs_float_mode_set(mode->before);
}

#else

#include <fenv.h>

typedef struct gs_float_mode {
    fenv_t before;
} gs_float_mode;

static inline void gs_float_mode_enter(gs_float_mode *mode) {
    (void)fegetenv(&mode->before);
    (void)fesetenv(FE_DFL_ENV);
}

static inline void gs_float_mode_leave(const gs_float_mode *mode) {
    (void)fesetenv(&mode->before);
}

#endif

#endif
