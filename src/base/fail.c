/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[GS_FAIL_TEXT_MAX];

const char *gsync_last_error(void) {
    return last_text;
}

const char *gsync_status_name(gsync_status status) {
    /* No default label: the compiler then names the status that was forgotten here. */
    switch (status) {
    case GSYNC_OK:
        return "GSYNC_OK";
    case GSYNC_ERR_ARGUMENT:
        return "GSYNC_ERR_ARGUMENT";
    case GSYNC_ERR_STATE:
        return "GSYNC_ERR_STATE";
    case GSYNC_ERR_MISMATCH:
        return "GSYNC_ERR_MISMATCH";
    case GSYNC_ERR_INCOMPLETE:
        return "GSYNC_ERR_INCOMPLETE";
    case GSYNC_ERR_ALREADY_READY:
        return "GSYNC_ERR_ALREADY_READY";
    case GSYNC_ERR_UNKNOWN_GRADIENT:
        return "GSYNC_ERR_UNKNOWN_GRADIENT";
    case GSYNC_ERR_CHANGED:
        return "GSYNC_ERR_CHANGED";
    case GSYNC_ERR_UNSUPPORTED:
        return "GSYNC_ERR_UNSUPPORTED";
    case GSYNC_ERR_NONFINITE:
        return "GSYNC_ERR_NONFINITE";
    case GSYNC_ERR_DIVERGED:
        return "GSYNC_ERR_DIVERGED";
    case GSYNC_ERR_MEMORY:
        return "GSYNC_ERR_MEMORY";
    case GSYNC_ERR_TIMEOUT:
        return "GSYNC_ERR_TIMEOUT";
    case GSYNC_ERR_PEER_LOST:
        return "GSYNC_ERR_PEER_LOST";
    case GSYNC_ERR_ABORTED:
        return "GSYNC_ERR_ABORTED";
    case GSYNC_ERR_TRANSPORT:
        return "GSYNC_ERR_TRANSPORT";
    case GSYNC_ERR_INTERNAL:
        return "GSYNC_ERR_INTERNAL";
    }
    return "an unknown gsync_status";
}

/* Three dots tell the reader that words are missing. length is what the whole text would have had. */
static void mark_cut(char *text, int length) {
    if (length >= GS_FAIL_TEXT_MAX) {
        memcpy(text + GS_FAIL_TEXT_MAX - 4, "...", 4);
    }
}

gsync_status(gs_fail)(gsync_status status, const char *format, ...) {
    /* Written aside first: an argument may be gsync_last_error() itself. */
    char text[GS_FAIL_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0) {
        snprintf(text, sizeof text, "%s (its text could not be formatted)", gsync_status_name(status));
    }
    mark_cut(text, length);
    memcpy(last_text, text, strlen(text) + 1);
    return status;
}

void gs_fail_prefix(const char *format, ...) {
    char prefix[GS_FAIL_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    if (length < 0) {
        return; /* what was discovered is worth more than the words in front of it */
    }
    mark_cut(prefix, length);

    char text[GS_FAIL_TEXT_MAX];
    const int whole_length = snprintf(text, sizeof text, "%s%s", prefix, last_text);
    mark_cut(text, whole_length);
    memcpy(last_text, text, strlen(text) + 1);
}
