/* SPDX-License-Identifier: Apache-2.0 */
#include <gradsync/gradsync.h>

#define TEXT_OF(value) #value
#define TEXT(value) TEXT_OF(value)

const char *gsync_version(void) {
    return TEXT(GSYNC_VERSION_MAJOR) "." TEXT(GSYNC_VERSION_MINOR) "." TEXT(GSYNC_VERSION_PATCH);
}
