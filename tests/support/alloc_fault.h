/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ALLOC_FAULT_H
#define ALLOC_FAULT_H

/*
 * Makes one chosen allocation fail. The program is linked so that its calls of malloc and its relatives come here
 * first; a test asks for that in its first lines, and CMake then also compiles alloc_fault.c into a unit test:
 *
 *     gsync-test: wrap=malloc,calloc,realloc,aligned_alloc,posix_memalign,free
 *
 * All six have to be named. Only calls made in the program and in static libraries are seen, not those made inside
 * shared ones: strdup's own malloc is not. Any thread may allocate. To try every allocation of `init` once:
 *
 *     for (size_t nth = 1;; nth++) {
 *         const long before = alloc_fault_live();
 *         alloc_fault_fail_nth(nth);
 *         const gsync_status status = init(&object);
 *         const bool is_past_the_last = alloc_fault_count() < nth;
 *         alloc_fault_fail_nth(0);
 *         if (is_past_the_last) { clear(&object); break; }
 *         assert_int_equal(status, GSYNC_ERR_MEMORY);
 *         assert_int_equal(alloc_fault_live(), before);
 *     }
 */

#include <stddef.h>

/* Counts anew from here; the nth allocation (1: the next one) returns NULL, those after it succeed. 0: none fails. */
void alloc_fault_fail_nth(size_t nth);

/* Allocations attempted since the last alloc_fault_fail_nth, the failed one included. */
size_t alloc_fault_count(void);

/* Blocks allocated minus blocks freed since the program began. */
long alloc_fault_live(void);

#endif
