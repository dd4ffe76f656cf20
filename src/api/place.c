/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include <assert.h>
#include <stdio.h>

/* Whether a reducer's gradients are on the host or on a GPU, and what cannot be had there. */

#if GS_HAVE_CUDA
static const gs_stream_ops *const ops_of_build = &gs_stream_cuda;
#else
static const gs_stream_ops *const ops_of_build = NULL;
#endif

static gs_stream_home home_of(const void *address, int *device) {
    *device = -1;
    return ops_of_build != NULL && address != NULL ? ops_of_build->home_of(address, device) : GS_STREAM_HOST;
}

/* ---- where they are ---- */

/* One gradient of each kind, by index; GS_NO_INDEX: there is none. */
typedef struct homes {
    uint32_t on_host;
    uint32_t on_device;
    uint32_t anywhere; /* managed memory goes with the others */
} homes;

static homes find_homes(const gsync_reducer *reducer) {
    homes found = {GS_NO_INDEX, GS_NO_INDEX, GS_NO_INDEX};
    for (uint32_t i = (uint32_t)reducer->gradient_count; i-- > 0;) {
        int device;
        const gs_gradient *gradient = &reducer->gradients[i];
        if (gradient->tensor.data == NULL || gs_tensor_count(&gradient->tensor) == 0) {
            continue;
        }
        switch (home_of(gradient->tensor.data, &device)) {
        case GS_STREAM_HOST:
            found.on_host = i;
            break;
        case GS_STREAM_DEVICE:
            found.on_device = i;
            break;
        case GS_STREAM_EITHER:
            found.anywhere = i;
            break;
        }
    }
    return found;
}

static const char *name_of(const gsync_reducer *reducer, uint32_t index) {
    return reducer->gradients[index].name;
}

static gsync_status choose(const gsync_reducer *reducer, bool *is_on_device) {
    const homes found = find_homes(reducer);
    const gsync_memory memory = reducer->options.memory;
    if (found.on_host != GS_NO_INDEX && found.on_device != GS_NO_INDEX) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gradient '%s' is in host memory and gradient '%s' on a GPU: one reducer has all of them in the "
                       "same kind of memory: use two",
                       name_of(reducer, found.on_host), name_of(reducer, found.on_device));
    }
    if (memory == GSYNC_MEMORY_HOST && found.on_device != GS_NO_INDEX) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradient '%s' is on a GPU, and gsync_options.memory is GSYNC_MEMORY_HOST",
                       name_of(reducer, found.on_device));
    }
    if (memory == GSYNC_MEMORY_DEVICE && found.on_host != GS_NO_INDEX) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gradient '%s' is in host memory, and gsync_options.memory is GSYNC_MEMORY_DEVICE",
                       name_of(reducer, found.on_host));
    }
    *is_on_device = found.on_device != GS_NO_INDEX || memory == GSYNC_MEMORY_DEVICE ||
                    (memory == GSYNC_MEMORY_AUTO && found.anywhere != GS_NO_INDEX && found.on_host == GS_NO_INDEX);
    if (*is_on_device && ops_of_build == NULL) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED, "gsync_options.memory is GSYNC_MEMORY_DEVICE, and this library was built "
                                              "without CUDA");
    }
    return GSYNC_OK;
}

static gsync_status check_device(const gsync_reducer *reducer, uint32_t index, const void *place) {
    int device;
    const int own = reducer->stream_ops->device(reducer->stream);
    const gs_stream_home home = home_of(place, &device);
    if (home == GS_STREAM_HOST) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gradient '%s': %p is host memory, and this reducer's gradients are on GPU %d",
                       name_of(reducer, index), place, own);
    }
    if (home == GS_STREAM_DEVICE && device != own) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gradient '%s' is on GPU %d, and the reducer's is GPU %d: make it current with cudaSetDevice "
                       "before gsync_reducer_commit",
                       name_of(reducer, index), device, own);
    }
    return GSYNC_OK;
}

static gsync_status check_devices(const gsync_reducer *reducer) {
    for (uint32_t i = 0; i < reducer->gradient_count; i++) {
        const gs_tensor *tensor = &reducer->gradients[i].tensor;
        if (tensor->data != NULL && gs_tensor_count(tensor) != 0) {
            GS_TRY(check_device(reducer, i, tensor->data));
        }
    }
    return GSYNC_OK;
}

/* A rank on its own would let NCCL use memory that it knows on some ranks only. */
static gsync_status check_registered(const gsync_reducer *reducer, uint32_t index, const void *place) {
    if (place != reducer->gradients[index].view && reducer->stream_ops->is_registered(reducer->stream)) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED,
                       "gradient '%s': with gsync_comm_options.nccl_registers_memory gradients stay in the library's "
                       "memory: copy it there, or leave the option at 0",
                       name_of(reducer, index));
    }
    return GSYNC_OK;
}

gsync_status gs_reducer_check_home(const gsync_reducer *reducer, uint32_t index, const void *place) {
    const gs_tensor *tensor = &reducer->gradients[index].tensor;
    if (place == NULL || !reducer->was_committed || gs_tensor_count(tensor) == 0) {
        return GSYNC_OK;
    }
    if (reducer->stream != NULL) {
        GS_TRY(check_registered(reducer, index, place));
        return check_device(reducer, index, place);
    }
    int device;
    if (home_of(place, &device) == GS_STREAM_DEVICE) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gradient '%s': %p is on GPU %d, and this reducer's gradients are on the host",
                       name_of(reducer, index), place, device);
    }
    return GSYNC_OK;
}

void gs_reducer_note_moves(gsync_reducer *reducer) {
    if (reducer->stream != NULL) {
        reducer->stream_ops->moved(reducer->stream);
    }
}

/* ---- what only one of them does ---- */

/* Ranks on hosts add up in float32, whatever travels. */
static gsync_status check_host_sums(const gsync_reducer *reducer) {
    for (uint32_t i = 0; reducer->comm->group->world_size > 1 && i < reducer->gradient_count; i++) {
        const gs_gradient *gradient = &reducer->gradients[i];
        if (gradient->has_rule && reducer->pipeline.wires[gradient->rule].sum == GSYNC_WIRE_SUM_FAST) {
            return gs_fail(GSYNC_ERR_UNSUPPORTED,
                           "gradient '%s' is on the host, where sums are made in float32: gsync_wire_options.sum "
                           "GSYNC_WIRE_SUM_FAST is NCCL's, for gradients on a GPU: leave it at 0",
                           gradient->name);
        }
    }
    return GSYNC_OK;
}

/* ---- the stream ---- */

static bool has_views_only(const gsync_reducer *reducer) {
    bool has_only = reducer->has_views;
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        has_only = has_only && (reducer->gradients[i].has_view || gs_tensor_count(&reducer->gradients[i].tensor) == 0);
    }
    return has_only;
}

static gsync_status open_stream(gsync_reducer *reducer, const gs_stream_ops *ops) {
    const gs_stream_wish wish = {
        .shapes = reducer->shapes,
        .gradient_count = reducer->gradient_count,
        .bucket_elements_max = gs_reducer_bucket_elements_max(reducer),
        .has_views = reducer->has_views,
        .accumulates = gs_reducer_overwrites(reducer),
        .is_deterministic = reducer->options.is_deterministic != 0,
        .finds_unused = reducer->options.finds_unused != 0,
        .checks_writes = reducer->options.checks_writes != 0,
        .compares_replicas = reducer->options.replica_check_interval != 0,
        .exchanges_refusals = reducer->options.is_strict != 0,
        .nccl_ctas_max = (int)reducer->comm->options.nccl_ctas_max,
        .allows_shared_device = reducer->comm->options.allows_shared_device != 0,
        .registers = reducer->comm->options.nccl_registers_memory != 0 && has_views_only(reducer),
        .has_normal_priority = reducer->comm->options.has_normal_priority != 0,
    };
    assert(ops != NULL); /* or choose has refused */
    reducer->pipeline.group = reducer->comm->group;
    GS_TRY(ops->open(&reducer->stream, &reducer->pipeline, &wish));
    reducer->stream_ops = ops;
    reducer->has_waited = true; /* there is nothing yet that it does not know */
    return check_devices(reducer);
}

gsync_status gs_reducer_find_place(gsync_reducer *reducer) {
    bool is_on_device = false;
    if (reducer->was_committed) {
        return GSYNC_OK; /* gradients that have moved since were looked at then */
    }
    gs_reducer_close_stream(reducer);
    GS_TRY(choose(reducer, &is_on_device));
    if (!is_on_device) {
        return check_host_sums(reducer);
    }
    return open_stream(reducer, ops_of_build);
}

gsync_status gs_reducer_join_stream(gsync_reducer *reducer) {
    return reducer->stream != NULL ? reducer->stream_ops->join(reducer->stream, reducer->comm->group->control)
                                   : GSYNC_OK;
}

void gs_reducer_close_stream(gsync_reducer *reducer) {
    if (reducer->stream != NULL) {
        const gs_reducer_stage stage = gs_reducer_get_stage(reducer);
        reducer->stream_ops->close(reducer->stream, stage == GS_REDUCER_IDLE || stage == GS_REDUCER_OPEN);
        reducer->stream = NULL;
    }
}
