/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_CLOCK_H
#define GS_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic nanoseconds. */
uint64_t gs_clock_ns(void);

#endif
