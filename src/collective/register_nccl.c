/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/internal_nccl.h"

/* Memory that NCCL reads and writes directly, instead of through buffers of its own. */

gsync_status gs_nccl_memory_new(void **memory, size_t bytes) {
    const gs_nccl_library *library = NULL;
    GS_TRY(gs_nccl_library_find(&library));
    if (library->mem_alloc == NULL || library->mem_free == NULL || library->comm_register == NULL ||
        library->comm_deregister == NULL) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED, "%s has no ncclMemAlloc or ncclCommRegister", library->description);
    }
    return gs_nccl_translate(library, NULL, -1, library->mem_alloc(memory, bytes), "ncclMemAlloc");
}

void gs_nccl_memory_free(void *memory) {
    const gs_nccl_library *library = NULL;
    if (memory != NULL && gs_nccl_library_find(&library) == GSYNC_OK) {
        (void)library->mem_free(memory); /* there is nobody left to tell */
    }
}

bool gs_nccl_all_register(const gs_nccl *nccl) {
    return nccl->all_register;
}

gsync_status gs_nccl_register(gs_nccl *nccl, void *memory, size_t bytes) {
    GS_TRY(gs_nccl_enter(nccl));
    const ncclResult_t result = nccl->library->comm_register(nccl->comm, memory, bytes, &nccl->registration);
    const gsync_status status = gs_nccl_settle(nccl, result, "ncclCommRegister");
    gs_nccl_leave(nccl);
    return status;
}

void gs_nccl_deregister(gs_nccl *nccl) {
    if (nccl->registration != NULL) {
        (void)nccl->library->comm_deregister(nccl->comm, nccl->registration);
        nccl->registration = NULL;
    }
}
