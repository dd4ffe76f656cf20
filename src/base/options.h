/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_OPTIONS_H
#define GS_BASE_OPTIONS_H

/* Structs that start with their size, so that they can grow without breaking callers. */

#include <gradsync/gradsync.h>

/*
 * Copies the caller's struct `from` (NULL: nothing, all defaults) into `to`, which has `size` bytes. A caller with an
 * older, shorter struct gets defaults for the rest; bytes of a newer, longer one that we do not know must be zero.
 */
gsync_status gs_options_copy(void *to, size_t size, const void *from, const char *name);

/* For output structs: copies as much of `from` (size bytes, its size member included) as the caller's struct holds. */
gsync_status gs_options_give(void *to, const void *from, size_t size, const char *name);

/* Refuses the output struct before any work is done. NULL is accepted. */
gsync_status gs_options_check_output(const void *to, const char *name);

#endif
