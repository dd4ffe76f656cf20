/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_FAIL_H
#define GS_BASE_FAIL_H

/*
 * Failures: the function that discovers one calls gs_fail, which keeps the words for gsync_last_error() of this
 * thread; everyone above passes the status on.
 */

#include <gradsync/gradsync.h>

#define GS_FAIL_TEXT_MAX 1024

#if defined(__GNUC__)
#define GS_PRINTF(string_index, first) __attribute__((format(printf, string_index, first)))
#else
#define GS_PRINTF(string_index, first)
#endif

/* Keeps the text and returns status, so that a discovery is one line: return gs_fail(GSYNC_ERR_..., "..."). */
gsync_status gs_fail(gsync_status status, const char *format, ...) GS_PRINTF(2, 3);

/* An analyzer looks at one file at a time: tell it that what comes back is what went in, which is never GSYNC_OK. */
#if defined(__clang_analyzer__)
#define gs_fail(status, ...) ((void)(gs_fail)((status), __VA_ARGS__), (status))
#endif

/* Puts words in front of this thread's last text: "commit: " + what was discovered below. */
void gs_fail_prefix(const char *format, ...) GS_PRINTF(1, 2);

#define GS_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const gsync_status gs_try_status = (call);                                                                     \
        if (gs_try_status != GSYNC_OK) {                                                                               \
            return gs_try_status;                                                                                      \
        }                                                                                                              \
    } while (0)

/* For functions that clean up under one label and have a `gsync_status status` in scope. */
#define GS_TRY_OR(call, label)                                                                                         \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != GSYNC_OK) {                                                                                      \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

#endif
