/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROCESS_USAGE_H
#define PROCESS_USAGE_H

/* What this process has of the operating system, as Linux tells it in /proc/self; and how often to repeat. */

#include "ranks.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_MEMORY 0 /* a sanitizer has memory of its own */
#else
#define COUNTS_MEMORY 1
#endif

/* Resident memory comes and goes by a few pages. Between hosts MPI has pools of its own, which grow by some MiB in the
 * first hundred large operations, and then no more. */
enum { RESIDENT_KIB_MORE = 256, MPI_KIB_MORE = 8192 };

typedef struct process_usage {
    long virtual_kib;
    long resident_kib;
    long threads;
    long files;    /* descriptors */
    long mappings; /* of memory, shared or not */
    long shared;   /* mappings that other processes may have too */
} process_usage;

/* A thread's first allocation, whenever that is, would have glibc set 64 MiB of addresses aside for it. */
__attribute__((constructor)) static inline void usage_share_one_heap(void) {
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, 1);
#endif
}

static inline void usage_read_status(process_usage *usage) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        (void)(sscanf(line, "VmSize: %ld", &usage->virtual_kib) == 1 ||
               sscanf(line, "VmRSS: %ld", &usage->resident_kib) == 1 ||
               sscanf(line, "Threads: %ld", &usage->threads) == 1);
    }
    if (file != NULL) {
        fclose(file);
    }
}

static inline void usage_read_maps(process_usage *usage) {
    FILE *file = fopen("/proc/self/maps", "r");
    char line[4352]; /* a path of any length */
    char access[8];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        usage->mappings++;
        usage->shared += sscanf(line, "%*s %7s", access) == 1 && access[3] == 's';
    }
    if (file != NULL) {
        fclose(file);
    }
}

static inline process_usage usage_now(void) {
    process_usage usage = {0};
    DIR *files = opendir("/proc/self/fd");
    while (files != NULL && readdir(files) != NULL) {
        usage.files++;
    }
    if (files != NULL) {
        closedir(files);
    }
    usage_read_status(&usage);
    usage_read_maps(&usage);
    return usage;
}

static inline bool usage_check(const process_usage *before, const process_usage *after, bool has_hosts) {
    const long kib_more = has_hosts ? MPI_KIB_MORE : 0;
    bool is_same = CHECK_EQ(after->threads, before->threads);
    is_same = CHECK_EQ(after->files, before->files) && is_same;
    is_same = CHECK_EQ(after->shared, before->shared) && is_same;
    if (COUNTS_MEMORY) {
        is_same = (has_hosts || CHECK_EQ(after->mappings, before->mappings)) && is_same;
        is_same = CHECK(after->virtual_kib <= before->virtual_kib + kib_more) && is_same;
        is_same = CHECK(after->resident_kib <= before->resident_kib + RESIDENT_KIB_MORE + kib_more) && is_same;
    }
    return is_same;
}

static inline bool soak_is_long(void) {
    return getenv("GRADSYNC_TEST_SOAK") != NULL;
}

/* Tells what was counted, in a long run only. */
static inline void usage_print(const ranks_context *ctx, const char *what, long repeats, const process_usage *before,
                               const process_usage *after) {
    if (soak_is_long() && before->threads != 0) {
        printf("rank %d: %ld x %s: VmRSS %ld -> %ld KiB, VmSize %ld -> %ld KiB, threads %ld -> %ld, descriptors %ld -> "
               "%ld, mappings %ld -> %ld, shared %ld -> %ld\n",
               ctx->rank, repeats, what, before->resident_kib, after->resident_kib, before->virtual_kib,
               after->virtual_kib, before->threads, after->threads, before->files, after->files, before->mappings,
               after->mappings, before->shared, after->shared);
        fflush(stdout);
    }
}

#endif
