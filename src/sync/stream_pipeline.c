/* SPDX-License-Identifier: Apache-2.0 */
#include "base/wire_format.h"
#include "sync/stream_internal.h"

#include <stdio.h>
#include <string.h>

static const gs_bucket *bucket_at(const gs_stream *stream, size_t bucket) {
    return &stream->pipeline->plan->buckets[bucket];
}

/* ---- one bucket ---- */

/* What the pass has noticed goes to the host, and the next one starts with nothing. */
static gsync_status keep_findings(gs_stream *stream, size_t bucket, gs_stream_stage stage) {
    if (!stream->pipeline->terms.looks) {
        return GSYNC_OK;
    }
    gs_cuda_findings *to = &stream->turn->findings[bucket * GS_STREAM_STAGES + stage];
    gs_cuda_findings *found = &stream->notebook->found;
    GS_TRY(gs_cuda_copy(stream->cuda, to, found, sizeof *found, stream->queue));
    return gs_cuda_copy(stream->cuda, found, &stream->blank->found, sizeof *found, stream->queue);
}

static gsync_status encode(gs_stream *stream, const gs_stream_route *way) {
    gs_cuda_pass pass = gs_stream_pass_of(stream, way, way->brings);
    pass.factor = stream->pipeline->step.factor;
    pass.random = gs_stream_randomness(stream, way);
    pass.feedback = gs_stream_feedback(stream, way, GS_WIRE_CONTRIBUTION);
    if (way->differs) {
        GS_TRY(gs_stream_send_brings(stream, way->bucket, false));
        pass.brings = stream->brings + bucket_at(stream, way->bucket)->first;
    }
    GS_TRY(gs_cuda_encode(stream->cuda, &pass, way->at, stream->queue));
    return keep_findings(stream, way->bucket, GS_STREAM_ENCODE);
}

static gsync_status decode(gs_stream *stream, const gs_stream_route *way) {
    gs_cuda_pass pass = gs_stream_pass_of(stream, way, GS_STREAM_HAS_DATA);
    pass.divisor = way->divides && !way->is_direct ? stream->divisor : NULL;
    pass.results = gs_stream_result_scale(stream, way);
    pass.used = way->is_held && stream->finds_unused ? stream->used + bucket_at(stream, way->bucket)->first : NULL;
    GS_TRY(gs_cuda_decode(stream->cuda, &pass, way->at, stream->queue));
    return keep_findings(stream, way->bucket, GS_STREAM_DECODE);
}

/* Which part of a bucket is whose, when its sum is made in the order of ranks. */
typedef struct division_of_labour {
    size_t bytes;  /* of a part */
    size_t stride; /* the same in elements; wires of blocks count otherwise */
    size_t mine;   /* elements of this rank's part */
} division_of_labour;

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static division_of_labour divide_labour(const gs_stream *stream, const gs_stream_route *way) {
    const size_t ranks = (size_t)stream->world_size;
    const size_t count = bucket_at(stream, way->bucket)->element_count;
    const bool has_blocks = way->blocks.codec != GS_CUDA_PLAIN;
    const size_t per_line = has_blocks ? 1 : GS_STREAM_PART / way->size;
    const size_t part = has_blocks ? way->blocks.per_part * GS_WIRE_BLOCK
                                   : ((count + ranks - 1) / ranks + per_line - 1) / per_line * per_line;
    const size_t first = least(part * (size_t)stream->rank, count);
    return (division_of_labour){.bytes = has_blocks ? way->blocks.part_bytes : part * way->size,
                                .stride = part,
                                .mine = least(count - first, part)};
}

/* To each rank its part; the sum of mine; and everyone's sums to all. */
static gsync_status reduce_directly(gs_stream *stream, const gs_stream_route *way) {
    const division_of_labour part = divide_labour(stream, way);
    unsigned char *parts = stream->parts + stream->buckets[way->bucket].at;
    GS_TRY(gs_nccl_all_to_all(stream->nccl, way->at, parts, part.bytes, stream->queue));
    if (part.mine != 0) {
        const gs_cuda_pass shape = gs_stream_pass_of(stream, way, 0);
        const gs_cuda_combination sum = {.parts = parts,
                                         .ranks = stream->world_size,
                                         .shares = stream->shares,
                                         .stride = part.stride,
                                         .shard = way->at + part.bytes * (size_t)stream->rank,
                                         .count = part.mine,
                                         .wire = way->wire,
                                         .divisor = way->divides ? stream->divisor : NULL,
                                         .scale = way->scale,
                                         .results = gs_stream_result_scale(stream, way),
                                         .blocks = way->blocks,
                                         .feedback = gs_stream_feedback(stream, way, GS_WIRE_RESULT),
                                         .terms = shape.terms,
                                         .host_terms = shape.host_terms,
                                         .term_count = shape.term_count,
                                         .first = part.stride * (size_t)stream->rank,
                                         .notebook = stream->pipeline->terms.looks ? stream->notebook : NULL};
        GS_TRY(gs_cuda_combine(stream->cuda, &sum, stream->queue));
    }
    GS_TRY(keep_findings(stream, way->bucket, GS_STREAM_COMBINE));
    return gs_nccl_all_gather(stream->nccl, way->at, part.bytes, stream->queue);
}

static gsync_status reduce(gs_stream *stream, const gs_stream_route *way) {
    if (stream->world_size == 1) {
        return GSYNC_OK;
    }
    if (way->is_direct) {
        return reduce_directly(stream, way);
    }
    if (way->is_sparse) {
        return gs_stream_reduce_sparse(stream, way);
    }
    return gs_nccl_all_reduce(stream->nccl, way->at, bucket_at(stream, way->bucket)->element_count, way->wire,
                              way->factor, stream->queue);
}

static void note_bytes(gs_stream *stream, const gs_stream_route *way) {
    gs_pipeline *pipeline = stream->pipeline;
    const gs_bucket *bucket = bucket_at(stream, way->bucket);
    const bool is_left = way->is_in_place || gs_stream_changes_nothing(stream, way);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < bucket->gradient_count; i++) {
        bytes += gs_tensor_bytes(&pipeline->gradients[pipeline->plan->members[bucket->first + i]].tensor);
    }
    pipeline->bytes_reduced += bytes;
    pipeline->bytes_copied += is_left ? 0 : 2 * bytes;
}

static gsync_status queue_bucket(gs_stream *stream, size_t bucket) {
    const gs_stream_route way = gs_stream_route_of(stream, bucket);
    GS_TRY(gs_stream_note_began(stream, bucket));
    if (!gs_stream_changes_nothing(stream, &way)) {
        if (way.encodes) {
            GS_TRY(encode(stream, &way));
        }
        GS_TRY(reduce(stream, &way));
        if (!way.is_held && (!way.is_in_place || (way.divides && !way.is_direct))) {
            GS_TRY(decode(stream, &way));
        }
    }
    note_bytes(stream, &way);
    GS_TRY(gs_stream_note_ended(stream, bucket));
    return way.is_held ? GSYNC_OK : gs_cuda_record(stream->cuda, stream->buckets[bucket].done, stream->queue);
}

/* ---- steps ---- */

static void clear_findings(gs_stream_turn *turn, size_t bucket_count) {
    memset(turn->findings, 0, GS_STREAM_STAGES * bucket_count * sizeof *turn->findings);
}

/* The step's memory on the host. What a step some turns ago has left there is looked at first. */
static gsync_status take_turn(gs_stream *stream) {
    gs_stream_turn *turn = &stream->turns[stream->turns_taken % GS_STREAM_TURNS];
    if (turn->is_busy) {
        GS_TRY(gs_stream_wait_event(stream, turn->finished, NULL, NULL));
        GS_TRY(turn->is_open ? gs_stream_review(stream) : GSYNC_OK);
        turn->is_busy = false;
    }
    gs_stream_forget_turn(stream, turn);
    *turn->own_refusal = (gs_stream_refusal){.count = 0};
    clear_findings(turn, stream->pipeline->plan->bucket_count);
    stream->turn = turn;
    stream->turns_taken++;
    return GSYNC_OK;
}

/* A gradient that was marked in an earlier micro-batch of the window is read, and perhaps not marked again. */
static bool keeps_producers(const gs_stream *stream, bool starts_window) {
    return !stream->accumulates && !starts_window;
}

/* The first failure ends the step: what others count on will not come. */
static void keep(gs_stream *stream, gsync_status status) {
    if (status != GSYNC_OK && stream->status == GSYNC_OK) {
        gs_stream_fail(stream, status);
    }
}

static void tell_begin(const gs_stream *stream, uint64_t step) {
    if (step != 0) {
        gs_stream_tell_launched(stream, step, 0);
    } else {
        gs_stream_tell_accumulation(stream);
    }
}

static gsync_status begin(gs_stream *stream, bool starts_window, uint64_t step) {
    stream->launched = 0;
    stream->is_opened = false;
    stream->has_found = false;
    if (!keeps_producers(stream, starts_window)) {
        gs_stream_forget_producers(stream);
    }
    GS_TRY(gs_stream_status(stream));
    GS_TRY(gs_stream_review(stream));
    GS_TRY(take_turn(stream));
    keep(stream, gs_stream_upload(stream));
    tell_begin(stream, step);
    return gs_stream_status(stream);
}

/* The exchange waits for gradients like the bucket, though it needs none. On a device that has room for few kernels it
 * would else be in the way of another reducer's, which the other ranks wait for. */
static gsync_status launch_one(gs_stream *stream) {
    GS_TRY(gs_stream_check_abort(stream)); /* else the step could succeed, with what they had queued before */
    GS_TRY(gs_stream_wait_producers(stream, stream->launched));
    if (!stream->is_opened) {
        GS_TRY(gs_stream_begin_feedback(stream));
        GS_TRY(gs_stream_exchange_shares(stream));
        stream->is_opened = true;
    }
    GS_TRY(queue_bucket(stream, stream->launched));
    stream->launched++;
    gs_stream_tell_launched(stream, stream->pipeline->step.step, stream->launched);
    return GSYNC_OK;
}

static void launch(gs_stream *stream, size_t bucket_count) {
    for (size_t i = 0; i < bucket_count && stream->status == GSYNC_OK; i++) {
        const gsync_status status = launch_one(stream);
        keep(stream, status == GSYNC_ERR_TIMEOUT ? gs_stream_explain(stream, status) : status);
    }
}

static void refuse(gs_stream *stream, uint32_t gradient_index) {
    gs_stream_refusal *refusal = stream->turn->own_refusal;
    if (refusal->count < GS_STREAM_NAMES) {
        refusal->gradients[refusal->count] = gradient_index;
    }
    refusal->count++;
}

static bool holds_any(const gs_stream *stream) {
    return stream->finds_unused || stream->checks_writes;
}

static gsync_status decode_held(gs_stream *stream) {
    GS_TRY(stream->finds_unused ? gs_stream_exchange_used(stream) : GSYNC_OK);
    for (size_t b = 0; b < stream->launched; b++) {
        const gs_stream_route way = gs_stream_route_of(stream, b);
        if (way.is_held && !gs_stream_changes_nothing(stream, &way)) {
            GS_TRY(decode(stream, &way));
        }
    }
    return GSYNC_OK;
}

/* The consumer waits for the last bucket, and so for everything. */
static gsync_status settle_all(gs_stream *stream, bool compares) {
    GS_TRY(holds_any(stream) ? decode_held(stream) : GSYNC_OK);
    GS_TRY(compares ? gs_stream_digest_all(stream) : GSYNC_OK);
    for (size_t b = 0; b < stream->launched; b++) {
        if (gs_stream_is_held(stream, b) || b + 1 == stream->launched) {
            GS_TRY(gs_cuda_record(stream->cuda, stream->buckets[b].done, stream->queue));
        }
    }
    return GSYNC_OK;
}

static void settle(gs_stream *stream, bool compares) {
    if ((holds_any(stream) || compares) && stream->status == GSYNC_OK) {
        keep(stream, settle_all(stream, compares));
    }
}

/* Where nobody looks, no host decides what the step leaves behind. */
static void end(gs_stream *stream, bool looks) {
    if (stream->status == GSYNC_OK && !looks) {
        keep(stream, gs_stream_settle_alone(stream));
    }
    if (stream->status == GSYNC_OK) {
        keep(stream, gs_stream_exchange_end(stream, looks));
    }
}

static void settle_feedback(gs_stream *stream) {
    keep(stream, gs_stream_settle_decided(stream));
}

static void fold(gs_stream *stream) {
    keep(stream, gs_stream_fold(stream));
}

static void follow(gs_stream *stream, void *other) {
    keep(stream, gs_stream_follow(stream, other));
}

static void let_follow(gs_stream *stream, void *other) {
    keep(stream, gs_stream_let_follow(stream, other));
}

/* Judged when its memory on the host is looked at: gs_stream_review. */
static gsync_status leave(gs_stream *stream) {
    if (stream->turn->is_open) {
        gs_stream_tell_phase(stream, GS_STREAM_BETWEEN, stream->turn->step);
        gs_stream_watch_turn(stream, stream->turn);
    }
    const double divisor = stream->known_divisor;
    const double scale = stream->pipeline->step.loss_scale; /* 0: no step of the window has begun */
    stream->pipeline->outcome.divisor = divisor >= 0 && scale != 0 ? divisor / scale : 0.0;
    atomic_store(&stream->pipeline->reduced, stream->launched);
    return gs_stream_status(stream);
}

/* ---- accumulation ---- */

static gsync_status accumulate_bucket(gs_stream *stream, size_t bucket, double factor) {
    gs_stream_route way = {.bucket = bucket, .wire = gs_dtype_wide(bucket_at(stream, bucket)->dtype)};
    const int table = gs_stream_accumulates(stream, bucket, &way.differs);
    gs_cuda_pass pass = gs_stream_pass_of(stream, &way, table);
    pass.factor = factor;
    pass.notebook = NULL;
    if (way.differs) {
        GS_TRY(gs_stream_send_brings(stream, bucket, true));
        pass.brings = stream->brings + bucket_at(stream, bucket)->first;
    }
    GS_TRY(gs_stream_wait_producers(stream, bucket));
    GS_TRY(gs_cuda_encode(stream->cuda, &pass, stream->sums + stream->buckets[bucket].at, stream->queue));
    return gs_cuda_record(stream->cuda, stream->buckets[bucket].done, stream->queue);
}

static void accumulate(gs_stream *stream, double factor) {
    for (size_t b = 0; b < stream->pipeline->plan->bucket_count; b++) {
        keep(stream, accumulate_bucket(stream, b, factor));
    }
    stream->launched = stream->pipeline->plan->bucket_count;
    if (stream->finds_unused) {
        keep(stream, gs_stream_end_turn(stream));
    }
}

/* ---- clipping ---- */

static gsync_status scale_bucket(gs_stream *stream, size_t bucket, double factor) {
    gs_stream_route way = {.bucket = bucket, .wire = bucket_at(stream, bucket)->dtype};
    unsigned char *at = stream->buffers + stream->buckets[bucket].at;
    gs_cuda_pass pass = gs_stream_pass_of(stream, &way, GS_STREAM_HAS_DATA);
    pass.notebook = NULL;
    GS_TRY(gs_cuda_encode(stream->cuda, &pass, at, stream->queue));
    pass.factor = factor;
    pass.used = stream->finds_unused ? stream->used + bucket_at(stream, bucket)->first : NULL;
    GS_TRY(gs_cuda_decode(stream->cuda, &pass, at, stream->queue));
    return gs_cuda_record(stream->cuda, stream->buckets[bucket].done, stream->queue);
}

/* There may be another plan since the step, or other addresses. */
static gsync_status get_ready_to_scale(gs_stream *stream) {
    GS_TRY(gs_stream_upload(stream));
    return stream->finds_unused ? gs_stream_send_used(stream) : GSYNC_OK;
}

static gsync_status scale(gs_stream *stream, double factor, gs_idle_function idle, void *argument) {
    keep(stream, get_ready_to_scale(stream));
    for (size_t b = 0; b < stream->pipeline->plan->bucket_count; b++) {
        keep(stream, scale_bucket(stream, b, factor));
    }
    stream->launched = stream->pipeline->plan->bucket_count;
    return stream->launched != 0 ? gs_stream_wait_for_sums(stream, idle, argument) : GSYNC_OK;
}

/* ---- the front door's view ---- */

static gs_stream_home home_of(const void *address, int *device) {
    switch (gs_cuda_place_of(address, device)) {
    case GS_PLACE_DEVICE:
        return GS_STREAM_DEVICE;
    case GS_PLACE_MANAGED:
        return GS_STREAM_EITHER;
    case GS_PLACE_HOST:
        break;
    }
    return GS_STREAM_HOST;
}

static int device_of(const gs_stream *stream) {
    return gs_cuda_device(stream->cuda);
}

/* Arenas of ranks that all wish for it are alike: their gradients all live there, and plans are the same. */
static gsync_status register_arena(gs_stream *stream, gs_lane *lane) {
    if (!gs_nccl_all_register(stream->nccl)) {
        return GSYNC_OK;
    }
    const gsync_status own = gs_nccl_register(stream->nccl, stream->arena, stream->arena_bytes);
    const gsync_status status = gs_lane_agree(lane, "NCCL buffers", own, NULL);
    stream->is_registered = status == GSYNC_OK;
    return status;
}

static gsync_status join(gs_stream *stream, gs_lane *lane) {
    const gs_nccl_wish wish = {.bus_id = gs_cuda_bus_id(stream->cuda),
                               .cta_max = stream->nccl_ctas_max,
                               .allows_shared_device = stream->allows_shared_device,
                               .registers = stream->is_arena_nccls};
    if (stream->world_size == 1) {
        return GSYNC_OK;
    }
    GS_TRY(gs_nccl_open(stream->pipeline->group, lane, &wish, &stream->nccl));
    return register_arena(stream, lane);
}

static bool is_registered(const gs_stream *stream) {
    return stream->is_registered;
}

static unsigned char *views_of(const gs_stream *stream) {
    return stream->views;
}

static void rest(gs_stream *stream, uint64_t steps, bool commits) {
    gs_stream_forget_wait(stream);
    gs_stream_tell_phase(stream, commits ? GS_STREAM_COMMITTING : GS_STREAM_BETWEEN, steps);
}

static void moved(gs_stream *stream) {
    stream->has_moved = true;
}

static size_t launched_by(const gs_stream *stream) {
    return stream->launched;
}

const gs_stream_ops gs_stream_cuda = {
    .home_of = home_of,
    .open = gs_stream_open,
    .device = device_of,
    .join = join,
    .is_registered = is_registered,
    .close = gs_stream_close,
    .views = views_of,
    .lay_out = gs_stream_lay_out,
    .moved = moved,
    .rest = rest,
    .begin = begin,
    .launch = launch,
    .refuse = refuse,
    .settle = settle,
    .end = end,
    .wait = gs_stream_wait,
    .launched = launched_by,
    .note_mark = gs_stream_note_mark,
    .compare_marks = gs_stream_compare_marks,
    .digests = gs_stream_digests,
    .times = gs_stream_wait_for_times,
    .settle_feedback = settle_feedback,
    .fold = fold,
    .owed_bytes = gs_stream_owed_bytes,
    .save = gs_stream_save,
    .load = gs_stream_load,
    .accumulate = accumulate,
    .wait_for_sums = gs_stream_wait_for_sums,
    .scale = scale,
    .follow = follow,
    .let_follow = let_follow,
    .leave = leave,
    .explain = gs_stream_explain,
};
