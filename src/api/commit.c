/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include "base/memory.h"

#include <assert.h>
#include <stdlib.h>

/*
 * Commit: get ready alone, compare with the others, then map memory together and plan. What can fail on one rank
 * alone happens before the comparison, which carries the outcome to all.
 */

enum { REDUCER_MAIL_BYTES = 4096, KIB = 1024 };

/* ---- what this rank can check alone ---- */

typedef struct extent {
    uintptr_t begin;
    uintptr_t end;
    uint32_t index;
} extent;

static int by_begin(const void *a, const void *b) {
    const extent *left = a;
    const extent *right = b;
    return (left->begin > right->begin) - (left->begin < right->begin);
}

/* Rows of two matrices may interleave, so only dense gradients are held against each other. */
static size_t list_extents(const gsync_reducer *reducer, extent *extents) {
    size_t count = 0;
    for (uint32_t i = 0; i < reducer->gradient_count; i++) {
        const gs_tensor *tensor = &reducer->gradients[i].tensor;
        if (tensor->data != NULL && gs_tensor_count(tensor) != 0 && gs_tensor_is_dense(tensor)) {
            const uintptr_t begin = (uintptr_t)tensor->data;
            extents[count++] = (extent){begin, begin + gs_tensor_bytes(tensor), i};
        }
    }
    return count;
}

static gsync_status check_overlaps(const gsync_reducer *reducer) {
    extent *extents = NULL;
    GS_TRY(gs_memory_new(&extents, reducer->gradient_count, sizeof *extents, "gradient extents"));
    const size_t count = list_extents(reducer, extents);
    if (count > 1) {
        qsort(extents, count, sizeof *extents, by_begin);
    }
    gsync_status status = GSYNC_OK;
    for (size_t i = 1; i < count && status == GSYNC_OK; i++) {
        if (extents[i].begin < extents[i - 1].end) {
            status = gs_fail(GSYNC_ERR_ARGUMENT, "gradients '%s' and '%s' overlap in memory: register each once",
                             reducer->gradients[extents[i - 1].index].name, reducer->gradients[extents[i].index].name);
        }
    }
    gs_memory_free(extents);
    return status;
}

static gsync_status check_total(const gsync_reducer *reducer) {
    /* Every rank of the host has slots; leave room for alignment and for the sum over hosts. */
    const size_t most = SIZE_MAX / 8 / (size_t)reducer->comm->group->world_size;
    size_t total = 0;
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        const size_t bytes = reducer->shapes[i].count * sizeof(double);
        if (bytes > most - total) {
            return gs_fail(GSYNC_ERR_MEMORY, "gradients up to '%s' are more than memory can hold",
                           reducer->gradients[i].name);
        }
        total += bytes;
    }
    return GSYNC_OK;
}

/* ---- memory ---- */

static size_t slot_bytes(const gsync_reducer *reducer) {
    return gs_pipeline_slot_bytes(reducer->shapes, reducer->gradient_count, gs_reducer_overwrites(reducer));
}

/* Slots are for gradients that live in the library, and for results that are held back. */
static bool needs_slots(const gsync_reducer *reducer) {
    return reducer->stream == NULL &&
           (gs_reducer_is_deferred(reducer) || (reducer->has_views_anywhere && !gs_reducer_overwrites(reducer)));
}

static bool needs_views(const gsync_reducer *reducer) {
    return reducer->stream == NULL && reducer->has_views &&
           (gs_reducer_is_deferred(reducer) || gs_reducer_overwrites(reducer));
}

static gsync_status allocate_accumulators(gsync_reducer *reducer) {
    const bool has_own = gs_reducer_overwrites(reducer) && reducer->stream == NULL;
    for (size_t i = 0; has_own && i < reducer->gradient_count; i++) {
        gs_gradient *gradient = &reducer->gradients[i];
        if (gradient->accumulator == NULL) {
            const size_t bytes =
                gs_tensor_count(&gradient->tensor) * gsync_dtype_size(gs_dtype_wide(gradient->tensor.dtype));
            GS_TRY(gs_memory_new_aligned(&gradient->accumulator, bytes, "accumulator"));
        }
    }
    return GSYNC_OK;
}

void gs_reducer_free_plan(gsync_reducer *reducer) {
    gs_bucket_plan_clear(&reducer->plan);
    gs_ready_ledger_clear(&reducer->ledger);
    gs_launch_order_clear(&reducer->launch);
    gs_memory_free(reducer->pipeline.slot_offset);
    gs_memory_free(reducer->views);
    gs_memory_free((void *)reducer->places);
    gs_memory_free(reducer->pipeline.choices);
    gs_memory_free(reducer->order);
    reducer->pipeline.slot_offset = NULL;
    reducer->views = NULL;
    reducer->places = NULL;
    reducer->pipeline.choices = NULL;
    reducer->order = NULL;
}

static bool has_choices(const gsync_reducer *reducer) {
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        if (reducer->pipeline.wires[reducer->shapes[i].wire].is_auto) {
            return true;
        }
    }
    return false;
}

static gsync_status allocate_plan(gsync_reducer *reducer) {
    const size_t count = reducer->gradient_count;
    if (count != 0) {
        GS_TRY(gs_bucket_plan_init(&reducer->plan, count));
        GS_TRY(gs_ready_ledger_init(&reducer->ledger, count));
        GS_TRY(gs_launch_order_init(&reducer->launch, count));
    }
    GS_TRY(gs_memory_new(&reducer->pipeline.slot_offset, count, sizeof(size_t), "slot offsets"));
    GS_TRY(gs_memory_new(&reducer->order, 2 * count, sizeof *reducer->order, "launch order"));
    if (has_choices(reducer)) {
        GS_TRY(gs_memory_new(&reducer->pipeline.choices, count, sizeof *reducer->pipeline.choices, "wire choices"));
    }
    GS_TRY(gs_memory_new((void *)&reducer->places, count, sizeof *reducer->places, "places"));
    if (needs_views(reducer)) {
        /* As far apart as in the slots: one layout serves both. */
        GS_TRY(gs_memory_new_aligned(&reducer->views, slot_bytes(reducer), "gradients in the library's memory"));
    }
    return GSYNC_OK;
}

/* A second commit keeps the plan, in which gradients may live. A first one that is repeated after a failure starts
 * afresh, because gradients may have been added since. */
static gsync_status allocate(gsync_reducer *reducer) {
    if (!reducer->was_committed) {
        gs_reducer_free_plan(reducer);
        GS_TRY(allocate_plan(reducer));
    }
    return allocate_accumulators(reducer);
}

static gs_plan_rule rule_of(const gsync_reducer *reducer) {
    return (gs_plan_rule){
        .strategy = reducer->options.strategy,
        .bytes_max = reducer->options.bucket_bytes_max,
        .bytes_first_max = reducer->options.bucket_bytes_first_max,
    };
}

size_t gs_reducer_bucket_elements_max(const gsync_reducer *reducer) {
    const gs_plan_rule rule = rule_of(reducer);
    return gs_pipeline_wide_bytes(reducer->shapes, reducer->gradient_count, &rule) / sizeof(float);
}

/* A GPU has its own: gs_stream_wish. */
static gsync_status allocate_sparse(gsync_reducer *reducer) {
    if (reducer->stream != NULL) {
        return GSYNC_OK;
    }
    return gs_sparse_init(&reducer->pipeline.sparse, reducer->shapes, reducer->gradient_count, reducer->pipeline.wires,
                          gs_reducer_bucket_elements_max(reducer), reducer->comm->group->world_size);
}

static gsync_status get_ready(gsync_reducer *reducer) {
    GS_TRY(check_total(reducer));
    GS_TRY(check_overlaps(reducer));
    GS_TRY(gs_reducer_apply_wires(reducer));
    GS_TRY(gs_reducer_find_place(reducer));
    GS_TRY(gs_reducer_allocate_residuals(reducer));
    GS_TRY(allocate(reducer));
    GS_TRY(allocate_sparse(reducer));
    return gs_engine_start(&reducer->comm->engine);
}

/* ---- terms ---- */

static gs_divide divide_of(const gsync_options *options) {
    switch (options->op) {
    case GSYNC_WEIGHTED_MEAN:
        return GS_DIVIDE_WEIGHT;
    case GSYNC_MEAN:
        return options->divisor == GSYNC_DIVIDE_BY_PARTICIPANTS ? GS_DIVIDE_PARTICIPANTS : GS_DIVIDE_WORLD;
    default:
        return GS_DIVIDE_NOT;
    }
}

static void set_terms(gsync_reducer *reducer) {
    const gsync_options *options = &reducer->options;
    gs_pipeline *pipeline = &reducer->pipeline;
    pipeline->group = reducer->comm->group;
    pipeline->plan = &reducer->plan;
    pipeline->ledger = &reducer->ledger;
    pipeline->gradients = reducer->gradients;
    pipeline->observed = reducer->order + reducer->gradient_count;
    pipeline->terms = (gs_pipeline_terms){
        .divide = divide_of(options),
        .divides_by_micro_batches = options->op == GSYNC_MEAN && options->averages_window,
        /* Weights make windows of unequal length right; nothing else does. */
        .compares_micro_batches = options->op != GSYNC_WEIGHTED_MEAN,
        .finds_unused = options->finds_unused != 0,
        .checks_writes = options->checks_writes != 0,
        .sums_wide = gs_reducer_overwrites(reducer),
        .is_deferred = gs_reducer_is_deferred(reducer),
    };
    gs_bucket_init(pipeline);
    atomic_store(&pipeline->is_ended, 1);
}

/* ---- planning ---- */

void gs_reducer_lay_out(gsync_reducer *reducer) {
    const gs_stream_ops *ops = reducer->stream_ops;
    gs_stream *stream = reducer->stream;
    gs_pipeline_lay_out(&reducer->pipeline, stream != NULL ? ops->views(stream) : reducer->views);
    if (stream != NULL) {
        ops->lay_out(stream);
    }
    if (reducer->has_views) {
        gs_reducer_index_addresses(reducer);
    }
}

void gs_reducer_plan(gsync_reducer *reducer) {
    const gs_plan_rule rule = rule_of(reducer);
    if (reducer->gradient_count != 0) {
        gs_bucket_plan_build(&reducer->plan, reducer->shapes, reducer->order, &rule);
        gs_choice_start(&reducer->pipeline, reducer->step);
        gs_reducer_lay_out(reducer);
    }
}

static void plan_in_reverse(gsync_reducer *reducer) {
    const size_t count = reducer->gradient_count;
    for (size_t i = 0; i < count; i++) {
        reducer->order[i] = (uint32_t)(count - 1 - i);
    }
    gs_reducer_plan(reducer);
    reducer->observes_order = reducer->options.order == GSYNC_ORDER_AGREED;
}

/* Of the largest block that travels in one; 0: everything travels as it is. */
static size_t block_bytes(const gsync_reducer *reducer) {
    size_t most = 0;
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        const size_t bytes =
            reducer->shapes[i].wire >= GS_PLAN_NARROW_FIRST ? reducer->shapes[i].block * sizeof(float) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Gradients on a GPU go another way; what the ranks tell each other besides fits into mail. */
static gsync_status open_small_lane(gsync_reducer *reducer) {
    enum { LEAST_BYTES = 4096 };
    const gs_lane_shape shape = {
        .mail_bytes = REDUCER_MAIL_BYTES,
        .ring_bytes = gs_lane_ring_bytes(LEAST_BYTES),
        .wire_bytes_max = LEAST_BYTES,
        .reduce_bytes_max = LEAST_BYTES,
        .widening_max = GS_GRADIENT_WIDENING_MAX,
    };
    return gs_lane_open(reducer->comm->group, &shape, &reducer->pipeline.lane);
}

/* Where entries travel as mail, few long messages: each costs the latency of the network. But every rank of a host has
 * room for the mail of all ranks. */
static size_t mail_bytes(const gsync_reducer *reducer) {
    const size_t entries = reducer->pipeline.sparse.entries_max * sizeof(gs_sparse_entry);
    const size_t share = (size_t)32 * KIB * KIB / (size_t)reducer->comm->group->world_size;
    size_t bytes = share < KIB * KIB ? share : KIB * KIB;
    bytes = bytes > 64 * KIB ? bytes : 64 * KIB;
    bytes = entries < bytes ? entries : bytes;
    return bytes > REDUCER_MAIL_BYTES ? bytes / sizeof(gs_sparse_entry) * sizeof(gs_sparse_entry) : REDUCER_MAIL_BYTES;
}

static gsync_status open_lane(gsync_reducer *reducer) {
    gs_lane_close(reducer->pipeline.lane); /* of a first commit that failed */
    reducer->pipeline.lane = NULL;
    if (reducer->stream != NULL) {
        return open_small_lane(reducer);
    }
    const gs_plan_rule rule = rule_of(reducer);
    const gs_lane_shape shape = {
        .mail_bytes = mail_bytes(reducer),
        .slot_bytes = needs_slots(reducer) ? slot_bytes(reducer) : 0,
        .ring_bytes = gs_lane_ring_bytes(slot_bytes(reducer)),
        .wire_bytes_max = slot_bytes(reducer),
        .reduce_bytes_max = gs_pipeline_wide_bytes(reducer->shapes, reducer->gradient_count, &rule),
        .widening_max = GS_GRADIENT_WIDENING_MAX,
        .block_bytes = block_bytes(reducer),
    };
    return gs_lane_open(reducer->comm->group, &shape, &reducer->pipeline.lane);
}

/* ---- commit ---- */

static gsync_status commit_first(gsync_reducer *reducer) {
    gs_lane *control = reducer->comm->group->control;
    pthread_mutex_lock(&reducer->comm->calls);
    gsync_status status = gs_commit_compare(reducer, control, get_ready(reducer));
    if (status == GSYNC_OK) {
        status = open_lane(reducer);
    }
    if (status == GSYNC_OK) {
        status = gs_reducer_join_stream(reducer);
    }
    pthread_mutex_unlock(&reducer->comm->calls);
    GS_TRY(status);
    set_terms(reducer);
    plan_in_reverse(reducer);
    reducer->was_committed = true;
    gs_engine_add(&reducer->comm->engine, &reducer->pipeline);
    return GSYNC_OK;
}

/* On the reducer's own lane: a rank that has gone on with its steps instead is told so there. What steps that no host
 * has waited for still owe speaks of the plan that they had. */
static gsync_status agree_again(gsync_reducer *reducer) {
    GS_TRY(gs_step_device_catch_up(reducer));
    return gs_commit_compare(reducer, reducer->pipeline.lane, get_ready(reducer));
}

static gsync_status commit_again(gsync_reducer *reducer) {
    gs_step_device_rest(reducer, true);
    const gsync_status status = agree_again(reducer);
    gs_step_device_rest(reducer, false);
    GS_TRY(status);
    gs_engine_lock(&reducer->comm->engine);
    gs_reducer_fold(reducer);
    plan_in_reverse(reducer);
    gs_engine_unlock(&reducer->comm->engine);
    return GSYNC_OK;
}

static gsync_status commit(gsync_reducer *reducer) {
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_OPEN, "gsync_reducer_commit"));
    assert(reducer != NULL);
    const gsync_status status = reducer->was_committed ? commit_again(reducer) : commit_first(reducer);
    if (status != GSYNC_OK) {
        if (gs_status_is_for_good(status)) {
            gs_reducer_set_stage(reducer, GS_REDUCER_FAILED);
        }
        return status;
    }
    gs_reducer_close_window(reducer);
    gs_reducer_set_stage(reducer, GS_REDUCER_IDLE);
    GS_LOG(&reducer->comm->logger, GSYNC_LOG_INFO, "rank %d: %zu gradients in %zu buckets", reducer->comm->group->rank,
           reducer->gradient_count, reducer->plan.bucket_count);
    return GSYNC_OK;
}

gsync_status gsync_reducer_commit(gsync_reducer *reducer) {
    return gs_comm_report(gs_reducer_comm(reducer), commit(reducer));
}
