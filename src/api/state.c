/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include <inttypes.h>

/*
 * What a reducer remembers from step to step. The order of launching is part of it: who adds up an element keeps what
 * its rounding lost, and after a restart that must be the same rank.
 */

#define MAGIC UINT64_C(0x3165746174736773) /* "gsstate1" */

typedef struct state_header {
    uint64_t magic;
    uint64_t bytes;
    uint64_t gradients_digest;
    int32_t rank;
    int32_t world_size;
    uint64_t step;
    double divisor;
    float half_scale;
    uint32_t observes_order;
} state_header;

static size_t residual_bytes(const gsync_reducer *reducer, size_t index, int stage) {
    const gs_gradient *gradient = &reducer->gradients[index];
    if (reducer->stream != NULL) {
        return reducer->stream_ops->owed_bytes(reducer->stream, index, (gs_wire_stage)stage);
    }
    return gradient->residuals[stage].sides[0] != NULL ? gs_tensor_count(&gradient->tensor) * sizeof(float) : 0;
}

static size_t order_end(const gsync_reducer *reducer) {
    return sizeof(state_header) + reducer->gradient_count * sizeof *reducer->order;
}

static size_t size_of(const gsync_reducer *reducer) {
    size_t bytes = order_end(reducer);
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        for (int stage = 0; stage < 2; stage++) {
            bytes += residual_bytes(reducer, i, stage);
        }
    }
    return bytes;
}

size_t gsync_state_size(const gsync_reducer *reducer) {
    return reducer != NULL && reducer->was_committed ? size_of(reducer) : 0;
}

/* Gradients and wires, and what else decides who adds up which element. */
static uint64_t digest_of(const gsync_reducer *reducer) {
    const gs_group *group = reducer->comm->group;
    const gsync_options *options = &reducer->options;
    const uint64_t words[] = {gs_commit_digest(reducer),       (uint64_t)options->strategy, options->bucket_bytes_max,
                              options->bucket_bytes_first_max, (uint64_t)group->host_count, (uint64_t)group->host,
                              (uint64_t)group->local_count,    (uint64_t)group->local_rank, reducer->stream != NULL};
    return gs_host_hash(words, sizeof words, 0);
}

static state_header header_of(const gsync_reducer *reducer) {
    return (state_header){
        .magic = MAGIC,
        .bytes = size_of(reducer),
        .gradients_digest = digest_of(reducer),
        .rank = reducer->comm->group->rank,
        .world_size = reducer->comm->group->world_size,
        .step = reducer->step,
        .divisor = reducer->pipeline.divisor,
        .half_scale = reducer->pipeline.half_scale,
        .observes_order = reducer->observes_order,
    };
}

/* ---- save ---- */

static void *put(void *to, const void *from, size_t bytes) {
    if (bytes != 0) {
        memcpy(to, from, bytes);
    }
    return (unsigned char *)to + bytes;
}

static void put_residuals(const gsync_reducer *reducer, void *at) {
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        for (int stage = 0; stage < 2; stage++) {
            const gs_residual *residual = &reducer->gradients[i].residuals[stage];
            at = put(at, residual->sides[residual->valid], residual_bytes(reducer, i, stage));
        }
    }
}

static gsync_status save(const gsync_reducer *reducer, void *to, size_t bytes) {
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_IDLE, "gsync_state_save"));
    if (to == NULL || bytes < size_of(reducer)) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_state_save: %zu bytes are needed: see gsync_state_size",
                       size_of(reducer));
    }
    state_header header = header_of(reducer);
    if (reducer->owes_order && header.bytes > order_end(reducer)) {
        return gs_fail(
            GSYNC_ERR_STATE,
            "gsync_state_save: the ranks have not agreed on the order of buckets yet, which decides who owes "
            "what of results: save after the next step, or end the first one with gsync_finish");
    }
    void *after_order = (unsigned char *)to + order_end(reducer);
    if (reducer->stream != NULL) {
        GS_TRY(reducer->stream_ops->save(reducer->stream, after_order, &header.divisor));
    } else {
        put_residuals(reducer, after_order);
    }
    (void)put(put(to, &header, sizeof header), reducer->order, reducer->gradient_count * sizeof *reducer->order);
    return GSYNC_OK;
}

gsync_status gsync_state_save(const gsync_reducer *reducer, void *to, size_t bytes) {
    return gs_comm_report(gs_reducer_comm(reducer), save(reducer, to, bytes));
}

/* ---- load ---- */

static gsync_status check_header(const gsync_reducer *reducer, const state_header *header, size_t bytes) {
    const state_header own = header_of(reducer);
    if (header->magic != MAGIC) {
        return gs_fail(GSYNC_ERR_MISMATCH, "gsync_state_load: this is no state of a reducer");
    }
    if (header->rank != own.rank || header->world_size != own.world_size) {
        return gs_fail(
            GSYNC_ERR_MISMATCH,
            "gsync_state_load: the state is of rank %d of %d, this is rank %d of %d: each rank loads its own",
            header->rank, header->world_size, own.rank, own.world_size);
    }
    if (header->gradients_digest != own.gradients_digest || header->bytes != own.bytes || bytes < own.bytes) {
        return gs_fail(GSYNC_ERR_MISMATCH,
                       "gsync_state_load: the state (%" PRIu64
                       " bytes) is of other gradients or wires than these (%" PRIu64
                       " bytes), or of other buckets or hosts",
                       header->bytes, own.bytes);
    }
    return GSYNC_OK;
}

static const void *take(void *to, const void *from, size_t bytes) {
    if (bytes != 0) {
        memcpy(to, from, bytes);
    }
    return (const unsigned char *)from + bytes;
}

static gsync_status load_order(gsync_reducer *reducer, const void *from, const state_header *header) {
    const size_t count = reducer->gradient_count;
    uint32_t *order = reducer->order + count; /* room for an observed one */
    (void)take(order, from, count * sizeof *order);
    if (count != 0 && !gs_bucket_plan_complete_order(&reducer->plan, order, count, order)) {
        return gs_fail(GSYNC_ERR_MISMATCH, "gsync_state_load: the state is damaged: its order of gradients is none");
    }
    gs_engine_lock(&reducer->comm->engine);
    memcpy(reducer->order, order, count * sizeof *order);
    reducer->observes_order = header->observes_order != 0;
    reducer->step = header->step;
    reducer->clipped_step = UINT64_MAX;
    reducer->is_synced = false;  /* gradients are of another step */
    reducer->owes_times = false; /* what is owed is of the plan before */
    reducer->owes_replicas = false;
    reducer->pipeline.divisor = header->divisor;
    reducer->pipeline.half_scale = header->half_scale;
    gs_reducer_plan_anew(reducer);
    gs_engine_unlock(&reducer->comm->engine);
    gs_step_device_rest(reducer, false);
    return GSYNC_OK;
}

/* A step writes of the other side only what this rank adds up: the rest must not be another plan's. */
static void take_residuals(gsync_reducer *reducer, const void *at) {
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        for (int stage = 0; stage < 2; stage++) {
            gs_residual *residual = &reducer->gradients[i].residuals[stage];
            const size_t bytes = residual_bytes(reducer, i, stage);
            at = take(residual->sides[residual->valid], at, bytes);
            if (bytes != 0) {
                memset(residual->sides[1 - residual->valid], 0, bytes);
            }
        }
    }
}

static gsync_status load(gsync_reducer *reducer, const void *from, size_t bytes) {
    state_header header;
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_IDLE, "gsync_state_load"));
    if (reducer->window_micro_batches != 0) {
        return gs_fail(GSYNC_ERR_STATE, "gsync_state_load: in the middle of an accumulation window");
    }
    if (reducer->owes_order) {
        return gs_fail(GSYNC_ERR_STATE,
                       "gsync_state_load: the ranks have not agreed on the order of buckets yet, which would take the "
                       "place of the loaded one: load before the first step, after the next, or end the first one with "
                       "gsync_finish");
    }
    if (from == NULL || bytes < sizeof header) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_state_load: %zu bytes are no state", from == NULL ? 0 : bytes);
    }
    const void *at = take(&header, from, sizeof header);
    GS_TRY(check_header(reducer, &header, bytes));
    GS_TRY(load_order(reducer, at, &header));
    at = (const unsigned char *)at + reducer->gradient_count * sizeof *reducer->order;
    if (reducer->stream != NULL) {
        return reducer->stream_ops->load(reducer->stream, at, header.divisor);
    }
    take_residuals(reducer, at);
    return GSYNC_OK;
}

gsync_status gsync_state_load(gsync_reducer *reducer, const void *from, size_t bytes) {
    return gs_comm_report(gs_reducer_comm(reducer), load(reducer, from, bytes));
}
