/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MEASURE_WORDS_H
#define MEASURE_WORDS_H

/* What several of the small benchmarks say of the machine, and how they read lists of sizes. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#define MEASURE_COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define MEASURE_COMPILER "gcc " __VERSION__
#else
#define MEASURE_COMPILER "unknown"
#endif

/* Without what JSON would have to escape. */
static inline void measure_processor(char *text, size_t size) {
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(text, size, "unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon != NULL && strncmp(line, "model name", 10) == 0) {
            colon += strspn(colon, ": \t");
            snprintf(text, size, "%.*s", (int)strcspn(colon, "\n\"\\"), colon);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* 1 to most; *end: what follows. */
static inline bool measure_read_number(const char *text, char **end, uint64_t most, uint64_t *number) {
    *number = strtoull(text, end, 10);
    return *end != text && text[0] != '-' && *number >= 1 && *number <= most;
}

/* Bytes, with commas between them: multiples of 1024 up to 4 GiB; K and M are powers of 1024. */
static inline bool measure_read_sizes(const char *text, size_t *sizes, size_t sizes_max, size_t *count) {
    const uint64_t most = UINT64_C(1) << 32;
    for (*count = 0;; text++) {
        char *end;
        uint64_t bytes;
        if (*count == sizes_max || !measure_read_number(text, &end, most, &bytes)) {
            return false;
        }
        if (*end == 'K' || *end == 'M') {
            bytes <<= *end == 'K' ? 10 : 20;
            end++;
        }
        if (bytes % 1024 != 0 || bytes > most) {
            return false;
        }
        sizes[(*count)++] = (size_t)bytes;
        if (*end != ',') {
            return *end == '\0';
        }
        text = end;
    }
}

#endif
