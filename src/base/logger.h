/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_LOGGER_H
#define GS_BASE_LOGGER_H

/* Lines for the caller's log callback; silent without one. The level is tested before anything is formatted. */

#include "base/fail.h"

#include <stdbool.h>

typedef struct gs_logger {
    gsync_log_function log;
    void *user;
    gsync_log_level level;
} gs_logger;

static inline bool gs_logger_wants(const gs_logger *logger, gsync_log_level level) {
    return logger->log != NULL && level <= logger->level;
}

void gs_logger_write(const gs_logger *logger, gsync_log_level level, const char *format, ...) GS_PRINTF(3, 4);

#define GS_LOG(logger, level, ...)                                                                                     \
    do {                                                                                                               \
        if (gs_logger_wants((logger), (level))) {                                                                      \
            gs_logger_write((logger), (level), __VA_ARGS__);                                                           \
        }                                                                                                              \
    } while (0)

#endif
