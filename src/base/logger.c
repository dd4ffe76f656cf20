/* SPDX-License-Identifier: Apache-2.0 */
#include "base/logger.h"

#include <stdarg.h>
#include <stdio.h>

void gs_logger_write(const gs_logger *logger, gsync_log_level level, const char *format, ...) {
    char line[GS_FAIL_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    logger->log(logger->user, level, line);
}
