/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_API_COMM_NCCL_H
#define GS_API_COMM_NCCL_H

/* Communicators over NCCL alone, and what a build without CUDA says instead. */

#include "api/comm.h"

#include <stdbool.h>

#if GS_HAVE_CUDA
/* Collective over the processes that torchrun's variables tell of. */
gsync_status gs_comm_create_nccl(gsync_comm **comm, const gsync_comm_options *options, const char *reason);
/* Whether this machine has a GPU at all. */
bool gs_comm_sees_gpu(void);
/* GSYNC_ERR_ARGUMENT for memory of a GPU, which calls that the processor works off cannot touch. */
gsync_status gs_comm_check_place(const char *call, const void *buf);
#else
static inline gsync_status gs_comm_create_nccl(gsync_comm **comm, const gsync_comm_options *options,
                                               const char *reason) {
    (void)comm, (void)options;
    return gs_fail(GSYNC_ERR_UNSUPPORTED,
                   "this build has no CUDA and NCCL (%s asks for them): build with -DGRADSYNC_CUDA=ON", reason);
}

static inline bool gs_comm_sees_gpu(void) {
    return false;
}

static inline gsync_status gs_comm_check_place(const char *call, const void *buf) {
    (void)call, (void)buf;
    return GSYNC_OK;
}
#endif

#endif
