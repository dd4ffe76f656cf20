/* SPDX-License-Identifier: Apache-2.0 */
#include "api/comm_nccl.h"

#include "api/device_nccl.h"
#include "api/torchrun.h"
#include "device/device_cuda.h"

#include <gradsync/gradsync_cuda.h>

static gs_nccl_settings settings_of(const gsync_comm_options *options) {
    return (gs_nccl_settings){.timeout_ms = options->timeout_ms,
                              .logger = gs_comm_logger(options),
                              .allows_shared_device = options->allows_shared_device != 0};
}

static gsync_status make_of_torchrun(gs_group **group, gsync_status own, gs_nccl_settings *settings) {
    gs_torchrun torchrun;
    GS_TRY(own);
    GS_TRY(gs_torchrun_read(&torchrun));
    gs_nccl_device_open(settings);
    const gs_nccl_world world = {.address = torchrun.address, .world_size = torchrun.world_size, .rank = torchrun.rank};
    const gsync_status status = gs_nccl_group_of_world(group, &world, settings);
    gs_nccl_device_release(settings);
    return status;
}

gsync_status gs_comm_create_nccl(gsync_comm **comm, const gsync_comm_options *options, const char *reason) {
    gs_nccl_settings settings = settings_of(options);
    gsync_comm *made = NULL;
    gs_group *group = NULL;
    const gsync_status status = make_of_torchrun(&group, gs_comm_allocate(&made), &settings);
    return gs_comm_give(comm, made, status, group, options, reason);
}

bool gs_comm_sees_gpu(void) {
    return gs_cuda_visible_count() > 0;
}

gsync_status gs_comm_check_place(const char *call, const void *buf) {
    int device;
    if (buf != NULL && gs_cuda_place_of(buf, &device) == GS_PLACE_DEVICE) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "%s: the buffer is memory of device %d, which the processor cannot touch: copy it to the host "
                       "and back",
                       call, device);
    }
    return GSYNC_OK;
}

static gsync_status make_of_comm(gs_group **group, ncclComm_t nccl, gsync_status own, gs_nccl_settings *settings) {
    gs_nccl_device_open(settings);
    settings->own = own != GSYNC_OK ? own : settings->own;
    const gsync_status status = gs_nccl_group_of_comm(group, nccl, settings);
    gs_nccl_device_release(settings);
    return status;
}

gsync_status gsync_comm_from_nccl(gsync_comm **comm, ncclComm_t nccl, const gsync_comm_options *from) {
    gsync_comm_options options;
    if (comm == NULL || nccl == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_comm_from_nccl: %s is NULL", comm == NULL ? "comm" : "nccl");
    }
    GS_TRY(gs_comm_read_options(&options, from));
    gs_nccl_settings settings = settings_of(&options);
    gsync_comm *made = NULL;
    gs_group *group = NULL;
    const gsync_status status = make_of_comm(&group, nccl, gs_comm_allocate(&made), &settings);
    return gs_comm_give(comm, made, status, group, &options, "from an ncclComm_t");
}
