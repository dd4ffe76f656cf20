/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/library_nccl.h"

#include "collective/collective_nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Communicators with a configuration, which alone need not block, are as old as this. */
static const int VERSION_MIN = NCCL_VERSION(2, 14, 3);

typedef struct wanted {
    const char *symbol;
    size_t offset; /* in gs_nccl_library */
    bool is_needed;
} wanted;

#define NEEDED(symbol, member)                                                                                         \
    { symbol, offsetof(gs_nccl_library, member), true }
#define OPTIONAL(symbol, member)                                                                                       \
    { symbol, offsetof(gs_nccl_library, member), false }
static const wanted functions[] = {
    NEEDED("ncclGetVersion", get_version),
    NEEDED("ncclGetUniqueId", get_unique_id),
    NEEDED("ncclCommInitRankConfig", comm_init_rank_config),
    NEEDED("ncclCommFinalize", comm_finalize),
    NEEDED("ncclCommDestroy", comm_destroy),
    NEEDED("ncclCommAbort", comm_abort),
    NEEDED("ncclCommCount", comm_count),
    NEEDED("ncclCommUserRank", comm_user_rank),
    NEEDED("ncclCommCuDevice", comm_cu_device),
    NEEDED("ncclCommGetAsyncError", comm_get_async_error),
    NEEDED("ncclGetErrorString", get_error_string),
    NEEDED("ncclGetLastError", get_last_error),
    NEEDED("ncclGroupStart", group_start),
    NEEDED("ncclGroupEnd", group_end),
    NEEDED("ncclRedOpCreatePreMulSum", red_op_create_pre_mul_sum),
    NEEDED("ncclRedOpDestroy", red_op_destroy),
    NEEDED("ncclAllReduce", all_reduce),
    NEEDED("ncclAllGather", all_gather),
    NEEDED("ncclBroadcast", broadcast),
    NEEDED("ncclSend", send),
    NEEDED("ncclRecv", recv),
    OPTIONAL("ncclCommSplit", comm_split),
    OPTIONAL("ncclAlltoAll", all_to_all),
    OPTIONAL("ncclMemAlloc", mem_alloc),
    OPTIONAL("ncclMemFree", mem_free),
    OPTIONAL("ncclCommRegister", comm_register),
    OPTIONAL("ncclCommDeregister", comm_deregister),
};

void gs_nccl_library_name_version(int version, char *text, size_t size) {
    /* Two digits for the minor number since 2.9. */
    const int unit = version < 10000 ? 1000 : 10000;
    snprintf(text, size, "%d.%d.%d", version / unit, version % unit / 100, version % 100);
}

static int major_of(int version) {
    return version / (version < 10000 ? 1000 : 10000);
}

static gsync_status find_functions(gs_nccl_library *library, void *handle, const char *path) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(handle, functions[i].symbol);
        if (function == NULL && functions[i].is_needed) {
            return gs_fail(GSYNC_ERR_UNSUPPORTED, "the NCCL in %s has no %s: it is too old, or not NCCL", path,
                           functions[i].symbol);
        }
        /* POSIX lets a function's address be kept in a void *, C does not say how it gets out again. */
        memcpy((unsigned char *)library + functions[i].offset, &function, sizeof function);
    }
    return GSYNC_OK;
}

static gsync_status compare_versions(gs_nccl_library *library, const char *path) {
    char running[32];
    char header[32];
    const ncclResult_t result = library->get_version(&library->version);
    if (result != ncclSuccess) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED, "the NCCL in %s does not tell its version (%d)", path, (int)result);
    }
    gs_nccl_library_name_version(library->version, running, sizeof running);
    gs_nccl_library_name_version(NCCL_VERSION_CODE, header, sizeof header);
    if (library->version < VERSION_MIN || major_of(library->version) != major_of(NCCL_VERSION_CODE)) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED,
                       "the NCCL in %s is version %s, this library was built for %s and needs 2.14.3 or later of the "
                       "same major version: install that, or let LD_LIBRARY_PATH name it first",
                       path, running, header);
    }
    snprintf(library->description, sizeof library->description, "NCCL %s (header %s) from %s%s%s", running, header,
             path, library->comm_split == NULL ? ", without ncclCommSplit" : "",
             library->all_to_all == NULL ? ", without ncclAlltoAll" : "");
    return GSYNC_OK;
}

gsync_status gs_nccl_library_load(gs_nccl_library *library, void *handle, const char *name) {
    Dl_info info;
    void *symbol = dlsym(handle, "ncclGetVersion");
    const bool has_file = symbol != NULL && dladdr(symbol, &info) != 0 && info.dli_fname != NULL;
    const char *path = has_file ? info.dli_fname : name;
    memset(library, 0, sizeof *library);
    GS_TRY(find_functions(library, handle, path));
    return compare_versions(library, path);
}

/* One NCCL per process, as there is one dynamic linker. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static gs_nccl_library found;
static gsync_status outcome;

/* What the trainer has linked or opened for everybody comes first: its communicators belong to that one. */
static void look(void) {
    if (dlsym(RTLD_DEFAULT, "ncclAllReduce") != NULL) {
        outcome = gs_nccl_library_load(&found, RTLD_DEFAULT, "this process");
    } else {
        void *handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        outcome = handle != NULL
                      ? gs_nccl_library_load(&found, handle, "libnccl.so.2")
                      : gs_fail(GSYNC_ERR_UNSUPPORTED,
                                "no NCCL (%s): install it, or let LD_LIBRARY_PATH name its folder", dlerror());
    }
    if (outcome != GSYNC_OK) {
        snprintf(found.description, sizeof found.description, "%.500s", gsync_last_error());
    }
}

gsync_status gs_nccl_library_find(const gs_nccl_library **library) {
    pthread_once(&once, look);
    if (outcome != GSYNC_OK) {
        return gs_fail(outcome, "%s", found.description);
    }
    *library = &found;
    return GSYNC_OK;
}

const char *gs_nccl_describe(void) {
    pthread_once(&once, look);
    return found.description;
}
