/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include "base/fail.h"

#include <string.h>

static size_t declared_size(const void *options) {
    size_t size;
    memcpy(&size, options, sizeof size);
    return size;
}

static gsync_status check_size(size_t declared, const char *name) {
    /* Far beyond any struct of ours: the caller forgot the initializer and the member holds rubbish. */
    if (declared < sizeof(size_t) || declared > 65536) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s.struct_size is %zu: set the struct up with its _INIT macro", name,
                       declared);
    }
    return GSYNC_OK;
}

gsync_status gs_options_copy(void *to, size_t size, const void *from, const char *name) {
    memset(to, 0, size);
    if (from == NULL) {
        return GSYNC_OK;
    }
    const size_t declared = declared_size(from);
    GS_TRY(check_size(declared, name));
    for (size_t i = size; i < declared; i++) {
        if (((const unsigned char *)from)[i] != 0) {
            return gs_fail(GSYNC_ERR_ARGUMENT, "%s has a member set at byte %zu that this library (%s) does not know",
                           name, i, gsync_version());
        }
    }
    memcpy(to, from, declared < size ? declared : size);
    memcpy(to, &size, sizeof size);
    return GSYNC_OK;
}

gsync_status gs_options_check_output(const void *to, const char *name) {
    return to == NULL ? GSYNC_OK : check_size(declared_size(to), name);
}

gsync_status gs_options_give(void *to, const void *from, size_t size, const char *name) {
    if (to == NULL) {
        return GSYNC_OK;
    }
    const size_t declared = declared_size(to);
    GS_TRY(check_size(declared, name));
    const size_t shorter = declared < size ? declared : size;
    memcpy((unsigned char *)to + sizeof(size_t), (const unsigned char *)from + sizeof(size_t),
           shorter - sizeof(size_t));
    return GSYNC_OK;
}
