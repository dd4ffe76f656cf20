/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_COLLECTIVE_THREADS_H
#define GS_COLLECTIVE_COLLECTIVE_THREADS_H

/* Ranks that are threads of this process; a single rank is a group of one. Segments are heap memory. */

#include "collective/group.h"

/* groups has room for world_size. All or none. */
gsync_status gs_threads_create(gs_group **groups, int world_size, uint32_t timeout_ms, const gs_logger *logger);

#endif
