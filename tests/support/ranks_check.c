/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks_private.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Thread-local, so that a check needs no context and helpers of a body need no extra argument. */
static _Thread_local ranks_context *current;

void ranks_set_current(ranks_context *ctx) {
    current = ctx;
}

void ranks_adopt(ranks_context *ctx) {
    current = ctx;
}

ranks_context *ranks_current(void) {
    return current;
}

static const char *base_name(const char *file) {
    const char *slash = strrchr(file, '/');
    return slash != NULL ? slash + 1 : file;
}

bool ranks_fail(const char *file, int line, const char *format, ...) {
    char text[900];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (current == NULL) {
        fprintf(stderr, "%s:%d: %s (on a thread that did not call ranks_adopt)\n", base_name(file), line, text);
        exit(EXIT_FAILURE); /* nobody's failure would be lost */
    }
    char note[1000];
    snprintf(note, sizeof(note), "%s:%d: rank %d: %s", base_name(file), line, current->rank, text);
    ranks_board_note_failure(current->hidden->board, current->rank, note);
    return false;
}

bool ranks_has_failed(const ranks_context *ctx) {
    return ranks_board_failures(ctx->hidden->board, ctx->rank, ctx->rank) > 0;
}

void ranks_skip(const char *reason) {
    if (current != NULL) {
        ranks_board_note_skip(current->hidden->board, current->rank, reason);
    }
}

void ranks_refuse(const char *reason) {
    if (current != NULL) {
        ranks_board_note_refusal(current->hidden->board, current->rank, reason);
        if (pthread_equal(pthread_self(), current->hidden->body_thread)) {
            longjmp(current->hidden->way_out, 1);
        }
    }
}

bool ranks_check(bool holds, const char *file, int line, const char *claim) {
    return holds || ranks_fail(file, line, "%s does not hold", claim);
}

bool ranks_check_integers(long long got, long long expected, const char *file, int line, const char *claim) {
    return got == expected || ranks_fail(file, line, "%s: got %lld, expected %lld", claim, got, expected);
}

bool ranks_check_reals(double got, double expected, double tolerance, const char *file, int line, const char *claim) {
    /* The first comparison is for infinities; a NaN passes neither. */
    return got == expected || fabs(got - expected) <= tolerance ||
           ranks_fail(file, line, "%s: got %.17g, expected %.17g within %g", claim, got, expected, tolerance);
}

bool ranks_check_status(gsync_status got, gsync_status expected, const char *file, int line, const char *call) {
    if (got == expected) {
        return true;
    }
    if (got == GSYNC_OK) {
        return ranks_fail(file, line, "%s gave GSYNC_OK, expected %s", call, gsync_status_name(expected));
    }
    return ranks_fail(file, line, "%s gave %s, expected %s; \"%s\"", call, gsync_status_name(got),
                      gsync_status_name(expected), gsync_last_error());
}

bool ranks_check_contains(const char *text, const char *part, const char *file, int line) {
    return strstr(text, part) != NULL || ranks_fail(file, line, "\"%s\" is not in \"%s\"", part, text);
}

bool ranks_meet(ranks_context *ctx) {
    return ranks_exchange(ctx, NULL, 0, NULL);
}

bool ranks_exchange(ranks_context *ctx, const void *mine, size_t bytes, void *all) {
    if (bytes > RANKS_EXCHANGE_MAX) {
        return ranks_fail(__FILE__, __LINE__, "ranks_exchange carries at most %d bytes", RANKS_EXCHANGE_MAX);
    }
    const int missing = ranks_board_meet(ctx->hidden->board, ctx->rank, mine, bytes, all);
    return missing < 0 || ranks_fail(__FILE__, __LINE__, "rank %d left instead of meeting the others", missing);
}

bool ranks_check_same(ranks_context *ctx, uint64_t value, const char *file, int line, const char *claim) {
    uint64_t all[RANKS_WORLD_MAX];
    if (!ranks_exchange(ctx, &value, sizeof(value), all)) {
        return false;
    }
    for (int rank = 0; rank < ctx->world; rank++) {
        if (all[rank] != all[0]) {
            return ranks_fail(file, line, "%s is %llu on rank %d and %llu on rank 0", claim,
                              (unsigned long long)all[rank], rank, (unsigned long long)all[0]);
        }
    }
    return true;
}

double ranks_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
