/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

static gsync_status refuse(const char *what, const char *name, size_t bytes) {
    const bool is_exhausted = errno == ENOMEM || errno == ENOSPC;
    return gs_fail(is_exhausted ? GSYNC_ERR_MEMORY : GSYNC_ERR_TRANSPORT,
                   "%s of %zu bytes of shared memory (%s) failed: %s", what, bytes, name, strerror(errno));
}

/* Writes to every page: a first touch in the middle of training is slow, and on some systems very slow. */
static void touch(unsigned char *base, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 4096) {
        /* Adds nothing, atomically: peers may already be using the memory. */
        atomic_fetch_add((_Atomic unsigned char *)(base + at), 0);
    }
}

static gsync_status map(int file, size_t bytes, gs_segment *segment) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) {
        return refuse("mapping", segment->token, bytes);
    }
    segment->base = base;
    segment->bytes = bytes;
    touch(base, bytes);
    return GSYNC_OK;
}

static int create_anonymous(gs_segment *segment) {
#if defined(__linux__)
    const int file = memfd_create("gradsync", MFD_CLOEXEC);
    snprintf(segment->token, sizeof segment->token, "/proc/%ld/fd/%d", (long)getpid(), file);
    return file;
#else
    (void)segment;
    errno = ENOSYS;
    return -1;
#endif
}

static int create_named(gs_segment *segment) {
    snprintf(segment->token, sizeof segment->token, "/gradsync-%ld-%llx", (long)getpid(),
             (unsigned long long)gs_clock_ns());
    return shm_open(segment->token, O_RDWR | O_CREAT | O_EXCL, 0600);
}

static bool is_named(const gs_segment *segment) {
    return strncmp(segment->token, "/gradsync-", 10) == 0;
}

static void forget_name(gs_segment *segment) {
    if (is_named(segment)) {
        shm_unlink(segment->token);
    }
    segment->token[0] = '\0';
}

/* In pieces, because a signal makes the system drop what it has of a piece: a trainer with a timer has many. */
static int reserve(int file, size_t bytes) {
    enum { PIECE_BYTES = 4 * 1024 * 1024, TRIES_MAX = 1000 };
    int error = 0;
    for (size_t at = 0; at < bytes && error == 0; at += PIECE_BYTES) {
        const size_t length = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        int tries = 0;
        do {
            error = posix_fallocate(file, (off_t)at, (off_t)length);
        } while (error == EINTR && ++tries < TRIES_MAX);
    }
    return error;
}

/* Reserves the bytes first: without that a full file system would only show as SIGBUS at the first touch. */
static gsync_status fill(int file, size_t bytes, gs_segment *segment) {
    errno = reserve(file, bytes);
    if (errno != 0) {
        return refuse("allocation", segment->token, bytes);
    }
    return map(file, bytes, segment);
}

gsync_status gs_shared_memory_create(gs_shared_memory_kind kind, size_t bytes, gs_segment *segment) {
    memset(segment, 0, sizeof *segment);
    const int file = kind == GS_SHARED_MEMORY_ANONYMOUS ? create_anonymous(segment) : create_named(segment);
    if (file < 0) {
        return refuse("creation", segment->token, bytes);
    }
    segment->handle = file + 1; /* 0 is a file's number too */
    const gsync_status status = fill(file, bytes, segment);
    if (status != GSYNC_OK) {
        close(file);
        forget_name(segment);
        memset(segment, 0, sizeof *segment);
    }
    return status;
}

/* The name may mean another file by now, if its owner has given up; and one that is too short would be SIGBUS. */
static gsync_status check_size(int file, const char *token, size_t bytes) {
    struct stat about;
    if (fstat(file, &about) != 0) {
        return refuse("opening", token, bytes);
    }
    if (about.st_size < 0 || (size_t)about.st_size != bytes) {
        return gs_fail(GSYNC_ERR_TRANSPORT, "%s is not the %zu bytes of shared memory that it was", token, bytes);
    }
    return GSYNC_OK;
}

gsync_status gs_shared_memory_attach(const char *token, size_t bytes, gs_segment *segment) {
    memset(segment, 0, sizeof *segment);
    snprintf(segment->token, sizeof segment->token, "%s", token);
    const int file = is_named(segment) ? shm_open(token, O_RDWR, 0) : open(token, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return refuse("opening", token, bytes);
    }
    gsync_status status = check_size(file, token, bytes);
    if (status == GSYNC_OK) {
        status = map(file, bytes, segment);
    }
    close(file);
    segment->token[0] = '\0';
    return status;
}

void gs_shared_memory_settle(gs_segment *segment) {
    if (segment->handle != 0) {
        close((int)segment->handle - 1);
        segment->handle = 0;
    }
    forget_name(segment);
}

void gs_shared_memory_release(gs_segment *segment) {
    gs_shared_memory_settle(segment);
    if (segment->base != NULL) {
        munmap(segment->base, segment->bytes);
        segment->base = NULL;
    }
}
