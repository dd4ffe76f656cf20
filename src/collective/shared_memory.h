/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_SHARED_MEMORY_H
#define GS_COLLECTIVE_SHARED_MEMORY_H

/*
 * Memory that processes of one host share. Of our own rather than an MPI-3 window, so that a rank can release it
 * alone, at any time and after MPI_Finalize, and so that a missing peer cannot make that hang
 * (docs/decisions/0003-shared-memory.md).
 */

#include "collective/group.h"

typedef enum gs_shared_memory_kind {
    GS_SHARED_MEMORY_ANONYMOUS, /* memfd, found through /proc: not limited by the size of /dev/shm */
    GS_SHARED_MEMORY_NAMED,     /* shm_open */
    GS_SHARED_MEMORY_KINDS
} gs_shared_memory_kind;

/* Zeroed, every page present. */
gsync_status gs_shared_memory_create(gs_shared_memory_kind kind, size_t bytes, gs_segment *segment);
gsync_status gs_shared_memory_attach(const char *token, size_t bytes, gs_segment *segment);
/* The creator, once all have attached or failed to: the name goes, the memory stays until the last release. */
void gs_shared_memory_settle(gs_segment *segment);
void gs_shared_memory_release(gs_segment *segment);

#endif
