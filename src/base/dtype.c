/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

size_t gsync_dtype_size(gsync_dtype dtype) {
    switch (dtype) {
    case GSYNC_FLOAT64:
    case GSYNC_INT64:
        return 8;
    case GSYNC_FLOAT32:
    case GSYNC_INT32:
        return 4;
    case GSYNC_FLOAT16:
    case GSYNC_BFLOAT16:
        return 2;
    case GSYNC_UINT8:
        return 1;
    }
    return 0;
}

const char *gs_dtype_name(gsync_dtype dtype) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        return "float32";
    case GSYNC_FLOAT64:
        return "float64";
    case GSYNC_FLOAT16:
        return "float16";
    case GSYNC_BFLOAT16:
        return "bfloat16";
    case GSYNC_INT32:
        return "int32";
    case GSYNC_INT64:
        return "int64";
    case GSYNC_UINT8:
        return "uint8";
    }
    return "unknown";
}

bool gs_dtype_is_floating(gsync_dtype dtype) {
    return dtype == GSYNC_FLOAT32 || dtype == GSYNC_FLOAT64 || dtype == GSYNC_FLOAT16 || dtype == GSYNC_BFLOAT16;
}

gsync_dtype gs_dtype_wide(gsync_dtype dtype) {
    if (dtype == GSYNC_FLOAT64) {
        return GSYNC_FLOAT64;
    }
    return gs_dtype_is_floating(dtype) ? GSYNC_FLOAT32 : GSYNC_INT64;
}
