/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint.h"

#include "hash.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint64_t MAGIC = 0x3154524150545047u; /* "GPTPART1" */

enum { PATH_BYTES = 4096 };

typedef struct part_header {
    uint64_t magic;
    int64_t step;
    uint64_t bytes;
    uint64_t hash;
} part_header;

static bool give_reason(checkpoint_reason *reason, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason->words, sizeof reason->words, format, arguments);
    va_end(arguments);
    return false;
}

static bool part_path(char *to, const char *path, int rank, const char *suffix, checkpoint_reason *reason) {
    const int length = snprintf(to, PATH_BYTES, "%s.rank%d%s", path, rank, suffix);
    return (length > 0 && length < PATH_BYTES) || give_reason(reason, "the checkpoint's path is too long");
}

static bool write_all(FILE *file, const part_header *header, const void *part) {
    return fwrite(header, sizeof *header, 1, file) == 1 && fwrite(part, 1, header->bytes, file) == header->bytes &&
           fflush(file) == 0 && fsync(fileno(file)) == 0;
}

bool checkpoint_part_write(const char *path, int rank, int64_t step, const void *part, size_t bytes,
                           checkpoint_reason *reason) {
    char final[PATH_BYTES];
    char temporary[PATH_BYTES];
    if (!part_path(final, path, rank, "", reason) || !part_path(temporary, path, rank, ".tmp", reason)) {
        return false;
    }
    FILE *file = fopen(temporary, "wb");
    if (file == NULL) {
        return give_reason(reason, "cannot create the checkpoint %s: %s", temporary, strerror(errno));
    }
    const part_header header = {MAGIC, step, bytes, hash_bytes(part, bytes)};
    const bool is_written = write_all(file, &header, part);
    const int write_error = errno;
    const bool is_closed = fclose(file) == 0;
    if (!is_written || !is_closed || rename(temporary, final) != 0) {
        give_reason(reason, "cannot write the checkpoint %s: %s", final, strerror(is_written ? errno : write_error));
        remove(temporary);
        return false;
    }
    return true;
}

static bool read_all(FILE *file, const char *path, int64_t step, void *part, size_t bytes, checkpoint_reason *reason) {
    part_header header;
    if (fread(&header, sizeof header, 1, file) != 1 || header.magic != MAGIC) {
        return give_reason(reason, "%s is no part of a checkpoint of this program", path);
    }
    if (header.step != step) {
        return give_reason(reason, "%s is of step %lld and its checkpoint of step %lld", path, (long long)header.step,
                           (long long)step);
    }
    if (header.bytes != bytes) {
        return give_reason(reason,
                           "%s has %llu bytes and not %zu: --density, --feedback and the number of ranks have "
                           "to be those that it was made with",
                           path, (unsigned long long)header.bytes, bytes);
    }
    if (fread(part, 1, bytes, file) != bytes || hash_bytes(part, bytes) != header.hash) {
        return give_reason(reason, "%s is damaged or incomplete", path);
    }
    return true;
}

bool checkpoint_part_read(const char *path, int rank, int64_t step, void *part, size_t bytes,
                          checkpoint_reason *reason) {
    char from[PATH_BYTES];
    if (!part_path(from, path, rank, "", reason)) {
        return false;
    }
    FILE *file = fopen(from, "rb");
    if (file == NULL) {
        return give_reason(reason, "cannot open the checkpoint's part %s: %s", from, strerror(errno));
    }
    const bool is_read = read_all(file, from, step, part, bytes, reason);
    fclose(file);
    return is_read;
}
