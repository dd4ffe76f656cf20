/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/sparse.h"

#include "base/float_mode.h"
#include "base/memory.h"
#include "collective/shard.h"
#include "sync/pipeline.h"

#include <math.h>

/* ---- memory ---- */

size_t gs_sparse_entries_max(const gs_plan_gradient *shapes, size_t gradient_count, const gs_wire_rule *wires,
                             size_t bucket_elements_max) {
    size_t all = 0;
    double density = 0;
    for (size_t i = 0; i < gradient_count; i++) {
        const gs_wire_rule *rule = &wires[shapes[i].wire];
        if (rule->wire == GSYNC_WIRE_TOPK) {
            density = rule->density > density ? rule->density : density;
            all += gs_wire_rule_kept(rule, shapes[i].count);
        }
    }
    const size_t in_bucket = (size_t)((double)bucket_elements_max * density) + gradient_count + 1;
    return all < in_bucket ? all : in_bucket;
}

static size_t find_longest(const gs_plan_gradient *shapes, size_t gradient_count, const gs_wire_rule *wires) {
    size_t longest = 0;
    for (size_t i = 0; i < gradient_count; i++) {
        const bool is_longer = wires[shapes[i].wire].wire == GSYNC_WIRE_TOPK && shapes[i].count > longest;
        longest = is_longer ? shapes[i].count : longest;
    }
    return longest;
}

gsync_status gs_sparse_init(gs_sparse *sparse, const gs_plan_gradient *shapes, size_t gradient_count,
                            const gs_wire_rule *wires, size_t bucket_elements_max, int world_size) {
    const size_t entries = gs_sparse_entries_max(shapes, gradient_count, wires, bucket_elements_max);
    const size_t longest = find_longest(shapes, gradient_count, wires);
    gs_sparse_clear(sparse);
    if (entries == 0) {
        return GSYNC_OK;
    }
    const size_t ranks = (size_t)world_size;
    const char *what = "the largest elements";
    GS_TRY(gs_memory_new(&sparse->own, entries, sizeof *sparse->own, what));
    GS_TRY(gs_memory_new(&sparse->gathered, entries * ranks, sizeof *sparse->gathered, what));
    GS_TRY(gs_memory_new(&sparse->gathered_count, ranks, sizeof *sparse->gathered_count, what));
    GS_TRY(gs_memory_new(&sparse->dense, longest, sizeof *sparse->dense, what));
    GS_TRY(gs_memory_new(&sparse->indices, longest, sizeof *sparse->indices, what));
    GS_TRY(gs_memory_new(&sparse->scratch, gs_topk_scratch_bytes(longest) + 1, 1, what));
    sparse->entries_max = entries;
    return GSYNC_OK;
}

void gs_sparse_clear(gs_sparse *sparse) {
    gs_memory_free(sparse->own);
    gs_memory_free(sparse->gathered);
    gs_memory_free(sparse->gathered_count);
    gs_memory_free(sparse->dense);
    gs_memory_free(sparse->indices);
    gs_memory_free(sparse->scratch);
    *sparse = (gs_sparse){.entries_max = 0};
}

/* ---- the bucket's gradients ---- */

static const gs_bucket *bucket_of(const gs_pipeline *pipeline) {
    return &pipeline->plan->buckets[pipeline->bucket];
}

static uint32_t member(const gs_pipeline *pipeline, uint32_t i) {
    return pipeline->plan->members[bucket_of(pipeline)->first + i];
}

static size_t kept(const gs_pipeline *pipeline, uint32_t index) {
    const gs_wire_rule *rule = &pipeline->wires[bucket_of(pipeline)->wire];
    return gs_wire_rule_kept(rule, gs_tensor_count(&pipeline->gradients[index].tensor));
}

static size_t entries_of(const gs_pipeline *pipeline) {
    size_t entries = 0;
    for (uint32_t i = 0; i < bucket_of(pipeline)->gradient_count; i++) {
        entries += kept(pipeline, member(pipeline, i));
    }
    return entries;
}

bool gs_sparse_is_on(const gs_pipeline *pipeline, size_t bucket) {
    return pipeline->wires[pipeline->plan->buckets[bucket].wire].wire == GSYNC_WIRE_TOPK &&
           gs_narrow_is_on(pipeline, bucket);
}

static void note_nonfinite(gs_pipeline *pipeline, uint32_t index, size_t count, int rank) {
    const float *dense = pipeline->sparse.dense;
    gs_findings found = {.has_nonfinite = true, .nonfinite_source = rank};
    size_t k = 0;
    while (k + 1 < count && isfinite(dense[k])) {
        k++;
    }
    found.nonfinite_element = pipeline->plan->element_offset[index] + k;
    gs_findings_note(pipeline, pipeline->bucket, &found);
}

/* ---- choosing ---- */

/* dense = gradient + what is owed; what is not sent is owed on. Nothing is rounded, so nothing is lost. */
static void choose(gs_pipeline *pipeline, uint32_t index, gs_sparse_entry *entries) {
    gs_sparse *sparse = &pipeline->sparse;
    gs_residual *residual = &pipeline->gradients[index].residuals[GS_WIRE_CONTRIBUTION];
    const bool feeds_back = residual->sides[0] != NULL;
    const size_t count = gs_tensor_count(&pipeline->gradients[index].tensor);
    const size_t k_max = kept(pipeline, index);
    const float unit = (float)pipeline->step.loss_scale;
    gs_bucket_gather(pipeline, index, sparse->dense);
    if (feeds_back) {
        gs_narrow_add_residual(sparse->dense, residual, 0, count, unit);
    }
    if (!gs_kernels_best()->is_finite_f32(sparse->dense, count)) {
        note_nonfinite(pipeline, index, count, pipeline->group->rank);
    }
    gs_topk_select(sparse->dense, count, k_max, sparse->indices, sparse->scratch);
    for (size_t k = 0; k < k_max; k++) {
        entries[k] = (gs_sparse_entry){sparse->indices[k], sparse->dense[sparse->indices[k]]};
        sparse->dense[sparse->indices[k]] = 0.0f;
    }
    if (feeds_back) {
        gs_narrow_owe(residual, sparse->dense, count, unit);
    }
}

static void choose_all(gs_pipeline *pipeline) {
    gs_sparse *sparse = &pipeline->sparse;
    gs_float_mode mode;
    sparse->own_count = 0;
    gs_float_mode_enter(&mode);
    for (uint32_t i = 0; i < bucket_of(pipeline)->gradient_count && pipeline->step.contributes; i++) {
        choose(pipeline, member(pipeline, i), sparse->own + sparse->own_count);
        sparse->own_count += kept(pipeline, member(pipeline, i));
    }
    gs_float_mode_leave(&mode);
    for (int rank = 0; rank < pipeline->group->world_size; rank++) {
        sparse->gathered_count[rank] = 0;
    }
}

void gs_sparse_offer(gs_pipeline *pipeline, gs_lane_operation *operation) {
    gs_sparse *sparse = &pipeline->sparse;
    if (sparse->sent == 0) {
        gs_bucket_note_bytes(pipeline, pipeline->bucket);
        choose_all(pipeline);
    }
    const size_t at_once = gs_lane_mail_max(pipeline->lane) / sizeof *sparse->own;
    const size_t left = sparse->own_count > sparse->sent ? sparse->own_count - sparse->sent : 0;
    operation->kind = GS_LANE_GATHER;
    operation->topic.total = sparse->sent + 1; /* which of the bucket's pieces it is */
    operation->mail = sparse->own + sparse->sent;
    operation->mail_bytes = (left < at_once ? left : at_once) * sizeof *sparse->own;
}

/* ---- adding up ---- */

static gsync_status collect(gs_pipeline *pipeline) {
    gs_sparse *sparse = &pipeline->sparse;
    for (int rank = 0; rank < pipeline->group->world_size; rank++) {
        size_t bytes;
        const void *mail = gs_lane_mail(pipeline->lane, rank, &bytes);
        size_t *count = &sparse->gathered_count[rank];
        if (bytes % sizeof *sparse->own != 0 || *count + bytes / sizeof *sparse->own > entries_of(pipeline)) {
            return gs_fail(GSYNC_ERR_TRANSPORT, "rank %d sent %zu bytes of entries, which are too many", rank, bytes);
        }
        if (bytes != 0) {
            memcpy(sparse->gathered + (size_t)rank * sparse->entries_max + *count, mail, bytes);
        }
        *count += bytes / sizeof *sparse->own;
    }
    return GSYNC_OK;
}

static const gs_sparse_entry *entries_from(const gs_pipeline *pipeline, int rank, size_t first) {
    return pipeline->sparse.gathered + (size_t)rank * pipeline->sparse.entries_max + first;
}

/* Before anything is written: an index from elsewhere is not to be trusted with an address. */
static gsync_status check_entries(const gs_pipeline *pipeline, uint32_t index, size_t first, int rank) {
    const size_t count = gs_tensor_count(&pipeline->gradients[index].tensor);
    const gs_sparse_entry *entries = entries_from(pipeline, rank, first);
    for (size_t k = 0; k < kept(pipeline, index); k++) {
        if (entries[k].index >= count) {
            return gs_fail(GSYNC_ERR_TRANSPORT, "gradient '%s': rank %d sent element %u of %zu",
                           pipeline->gradients[index].name, rank, entries[k].index, count);
        }
    }
    return GSYNC_OK;
}

static gsync_status check_all(const gs_pipeline *pipeline) {
    const size_t entries = entries_of(pipeline);
    for (int rank = 0; rank < pipeline->group->world_size; rank++) {
        const size_t count = pipeline->sparse.gathered_count[rank];
        size_t first = 0;
        if (count != 0 && count != entries) {
            return gs_fail(GSYNC_ERR_TRANSPORT, "rank %d sent %zu of %zu entries", rank, count, entries);
        }
        for (uint32_t i = 0; i < bucket_of(pipeline)->gradient_count && count != 0; i++) {
            GS_TRY(check_entries(pipeline, member(pipeline, i), first, rank));
            first += kept(pipeline, member(pipeline, i));
        }
    }
    return GSYNC_OK;
}

static void add_entries(gs_pipeline *pipeline, uint32_t index, size_t first, int rank) {
    const gs_sparse_entry *entries = entries_from(pipeline, rank, first);
    for (size_t k = 0; k < kept(pipeline, index) && pipeline->sparse.gathered_count[rank] != 0; k++) {
        pipeline->sparse.dense[entries[k].index] += entries[k].value;
    }
}

static void divide(gs_pipeline *pipeline, size_t count) {
    const double divisor = gs_lane_last_outcome(pipeline->lane)->divisor * pipeline->step.loss_scale;
    if (divisor == 0.0) {
        memset(pipeline->sparse.dense, 0, count * sizeof(float));
    } else if (divisor != 1.0) {
        gs_kernels_best()->divide_f32(pipeline->sparse.dense, gs_division_by(divisor), count);
    }
}

/* All ranks have all of the result; the squares are counted by one of them. */
static void note_result(gs_pipeline *pipeline, uint32_t index, size_t count) {
    gs_findings found = {.nonfinite_source = -1};
    gs_shard_look(pipeline->sparse.dense, count, bucket_of(pipeline)->dtype, &found);
    found.nonfinite_element += pipeline->plan->element_offset[index];
    found.square_sum = pipeline->group->rank == 0 ? found.square_sum : 0.0;
    gs_findings_note(pipeline, pipeline->bucket, &found);
}

static void add_up(gs_pipeline *pipeline) {
    size_t first = 0;
    for (uint32_t i = 0; i < bucket_of(pipeline)->gradient_count; i++) {
        const uint32_t index = member(pipeline, i);
        const size_t count = gs_tensor_count(&pipeline->gradients[index].tensor);
        memset(pipeline->sparse.dense, 0, count * sizeof(float));
        for (int rank = 0; rank < pipeline->group->world_size; rank++) {
            add_entries(pipeline, index, first, rank);
        }
        divide(pipeline, count);
        note_result(pipeline, index, count);
        gs_bucket_scatter(pipeline, index, pipeline->sparse.dense);
        first += kept(pipeline, index);
    }
}

gsync_status gs_sparse_take(gs_pipeline *pipeline, bool *has_more) {
    gs_sparse *sparse = &pipeline->sparse;
    const size_t entries = entries_of(pipeline);
    *has_more = false;
    GS_TRY(collect(pipeline));
    sparse->sent += gs_lane_mail_max(pipeline->lane) / sizeof *sparse->own;
    if (sparse->sent < entries) {
        *has_more = true;
        return GSYNC_OK;
    }
    sparse->sent = 0;
    GS_TRY(check_all(pipeline));
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    add_up(pipeline);
    gs_float_mode_leave(&mode);
    return GSYNC_OK;
}
