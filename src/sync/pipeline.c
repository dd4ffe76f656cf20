/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/pipeline.h"

#include "base/float_mode.h"

#include <stdio.h>
#include <string.h>

enum { SLOT_ALIGNMENT = 64 };

static size_t align_slot(size_t bytes) {
    return (bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
}

/* A gradient without elements has a place too: at another's address its marks would be taken for the other's. */
static size_t place_bytes(size_t bytes) {
    return align_slot(bytes == 0 ? 1 : bytes);
}

/* ---- memory ---- */

size_t gs_pipeline_slot_bytes(const gs_plan_gradient *shapes, size_t gradient_count, bool sums_wide) {
    size_t total = 0;
    for (size_t i = 0; i < gradient_count; i++) {
        const size_t size = gs_narrow_place_size(shapes[i].dtype, shapes[i].wire, sums_wide);
        total += place_bytes(gs_narrow_place_count(&shapes[i]) * size);
    }
    return total;
}

/* A gradient joins a bucket that is below the cap, unless it is longer than the cap itself: then it is alone. */
size_t gs_pipeline_wide_bytes(const gs_plan_gradient *shapes, size_t gradient_count, const gs_plan_rule *rule) {
    const size_t cap = rule->bytes_max > rule->bytes_first_max ? rule->bytes_max : rule->bytes_first_max;
    size_t total = 0;
    size_t longest = 0;
    size_t filling = 1; /* how many times longer a gradient becomes when its last block is filled up */
    for (size_t i = 0; i < gradient_count; i++) {
        const size_t count = gs_narrow_place_count(&shapes[i]);
        const size_t bytes = count * gsync_dtype_size(gs_dtype_wide(shapes[i].dtype));
        const size_t times = shapes[i].count != 0 ? (count + shapes[i].count - 1) / shapes[i].count : 1;
        total += bytes;
        longest = bytes > longest ? bytes : longest;
        filling = times > filling ? times : filling;
    }
    if (rule->strategy == GSYNC_STRATEGY_SINGLE || cap > total) {
        return total;
    }
    const size_t two_caps = cap > total / filling ? total : 2 * GS_GRADIENT_WIDENING_MAX * filling * cap;
    const size_t most = longest > two_caps ? longest : two_caps;
    return most < total ? most : total;
}

/* A gradient that lives in the library follows its place; one that the trainer has moved elsewhere stays there. */
static void place_view(gs_gradient *gradient, unsigned char *place) {
    if (!gradient->has_view) {
        return;
    }
    if (gradient->tensor.data == NULL || gradient->tensor.data == gradient->view) {
        gradient->tensor.data = place;
    }
    gradient->view = place;
}

/*
 * Slots follow each other in the order of the buckets' lowest gradients, not in the order of launching: agreeing on
 * another launch order then moves nothing.
 */
void gs_pipeline_lay_out(gs_pipeline *pipeline, unsigned char *views) {
    const gs_bucket_plan *plan = pipeline->plan;
    unsigned char *base = views != NULL ? views : gs_lane_slots(pipeline->lane);
    size_t at = 0;
    for (uint32_t i = 0; i < plan->gradient_count; i++) {
        const uint32_t b = plan->bucket_of[i];
        if (b == GS_NO_BUCKET) {
            /* Frozen or empty: it does not travel, but its address must not be another gradient's. */
            const gs_tensor *tensor = &pipeline->gradients[i].tensor;
            place_view(&pipeline->gradients[i], base + at);
            at += place_bytes(gs_tensor_count(tensor) *
                              gs_narrow_place_size(tensor->dtype, 0, pipeline->terms.sums_wide));
            continue;
        }
        const gs_bucket *bucket = &plan->buckets[b];
        const size_t size = gs_narrow_place_size(bucket->dtype, bucket->wire, pipeline->terms.sums_wide);
        if (plan->members[bucket->first] == i) {
            pipeline->slot_offset[b] = at;
            at += align_slot(bucket->element_count * size);
        }
        place_view(&pipeline->gradients[i], base + pipeline->slot_offset[b] + plan->element_offset[i] * size);
    }
}

/* ---- steps ---- */

void gs_pipeline_begin(gs_pipeline *pipeline, const gs_step_terms *step) {
    pipeline->step = *step;
    pipeline->bucket = 0;
    pipeline->is_posted = false;
    pipeline->refused_bucket = SIZE_MAX;
    pipeline->missing[0] = '\0';
    pipeline->outcome = (gs_lane_outcome){.refusing_rank = -1};
    pipeline->epilogue = GS_EPILOGUE_NONE;
    pipeline->early_status = GSYNC_OK;
    pipeline->is_concluding = false;
    atomic_store(&pipeline->early_order, GS_EARLY_NOT);
    pipeline->observed_count = 0;
    pipeline->bytes_copied = 0;
    pipeline->bytes_reduced = 0;
    pipeline->sparse.sent = 0;
    pipeline->bytes_sent_before = gs_lane_bytes_sent(pipeline->lane);
    pipeline->noticed = (gs_step_findings){.rank = -1};
    pipeline->findings = (gs_step_findings){.rank = -1};
    pipeline->is_torn = false;
    pipeline->status = GSYNC_OK;
    atomic_store(&pipeline->launched, 0);
    atomic_store(&pipeline->reduced, 0);
    atomic_store(&pipeline->is_ended, pipeline->plan->bucket_count == 0);
}

void gs_pipeline_launch(gs_pipeline *pipeline, size_t bucket_count) {
    atomic_fetch_add(&pipeline->launched, bucket_count);
}

void gs_pipeline_refuse(gs_pipeline *pipeline, size_t bucket, uint32_t gradient_index, const char *missing) {
    pipeline->refused_bucket = bucket;
    pipeline->refusal_index = gradient_index;
    snprintf(pipeline->missing, sizeof pipeline->missing, "%s", missing);
}

static void end(gs_pipeline *pipeline, gsync_status status) {
    pipeline->status = status;
    if (status != GSYNC_OK || !pipeline->terms.is_deferred) {
        gs_narrow_settle(pipeline, status == GSYNC_OK && !pipeline->findings.has_nonfinite);
    }
    if (status != GSYNC_OK) {
        snprintf(pipeline->failure_text, sizeof pipeline->failure_text, "%s", gsync_last_error());
    }
    atomic_store(&pipeline->is_ended, 1);
    gs_bell_ring(gs_group_bell(pipeline->group));
}

static void begin_epilogue(gs_pipeline *pipeline) {
    pipeline->epilogue = gs_epilogue_after(pipeline, GS_EPILOGUE_NONE);
    if (pipeline->epilogue == GS_EPILOGUE_NONE) {
        end(pipeline, GSYNC_OK);
    }
}

/* ---- buckets that went another way ---- */

static void go_on_after_buckets(gs_pipeline *pipeline, gsync_status status, bool is_refused) {
    if (status != GSYNC_OK) {
        end(pipeline, status);
    } else if (is_refused) {
        pipeline->epilogue = GS_EPILOGUE_MISSING;
    } else {
        begin_epilogue(pipeline);
    }
}

void gs_pipeline_tell_order(gs_pipeline *pipeline) {
    int expected = GS_EARLY_NOT;
    if (pipeline->step.wants_order) {
        (void)atomic_compare_exchange_strong(&pipeline->early_order, &expected, GS_EARLY_ASKED);
    }
}

static bool is_telling_early(const gs_pipeline *pipeline) {
    const int early = atomic_load(&pipeline->early_order);
    return early == GS_EARLY_ASKED || early == GS_EARLY_UNDER_WAY;
}

gsync_status gs_pipeline_early_status(const gs_pipeline *pipeline, bool *is_open) {
    *is_open = is_telling_early(pipeline);
    const bool has_failed = atomic_load(&pipeline->early_order) == GS_EARLY_TOLD && pipeline->early_status != GSYNC_OK;
    return has_failed ? gs_fail(pipeline->early_status, "%s", pipeline->failure_text) : GSYNC_OK;
}

static void begin_early_order(gs_pipeline *pipeline) {
    int expected = GS_EARLY_ASKED;
    if (pipeline->epilogue == GS_EPILOGUE_NONE &&
        atomic_compare_exchange_strong(&pipeline->early_order, &expected, GS_EARLY_UNDER_WAY)) {
        pipeline->epilogue = GS_EPILOGUE_ORDER;
    }
}

/* The step goes on where the order was waited for. What it has failed with stands. */
static void end_early_order(gs_pipeline *pipeline, gsync_status status) {
    const bool has_failed = pipeline->is_concluding && pipeline->status != GSYNC_OK;
    const gsync_status first = has_failed ? pipeline->status : status;
    if (status != GSYNC_OK && !has_failed) {
        snprintf(pipeline->failure_text, sizeof pipeline->failure_text, "%s", gsync_last_error());
    }
    pipeline->epilogue = GS_EPILOGUE_NONE;
    pipeline->early_status = status;
    atomic_store(&pipeline->early_order, GS_EARLY_TOLD);
    if (pipeline->is_concluding) {
        pipeline->is_concluding = false;
        if (first != GSYNC_OK) {
            (void)gs_fail(first, "%s", pipeline->failure_text); /* this thread may be another one */
        }
        go_on_after_buckets(pipeline, first, pipeline->is_refused);
    }
}

static void set_launched(gs_pipeline *pipeline, size_t launched) {
    pipeline->bucket = launched;
    atomic_store(&pipeline->launched, launched);
    atomic_store(&pipeline->is_ended, 0);
}

void gs_pipeline_leave(gs_pipeline *pipeline, size_t launched, gsync_status status) {
    set_launched(pipeline, launched);
    end(pipeline, status);
}

void gs_pipeline_conclude(gs_pipeline *pipeline, size_t launched, gsync_status status, bool is_refused) {
    set_launched(pipeline, launched);
    if (pipeline->early_status != GSYNC_OK && status == GSYNC_OK) {
        (void)gs_fail(pipeline->early_status, "%s", pipeline->failure_text);
        end(pipeline, pipeline->early_status);
    } else if (is_telling_early(pipeline) && !gs_lane_is_broken(pipeline->lane)) {
        /* All ranks tell it, so it comes to an end before anything else is said. */
        pipeline->is_concluding = true;
        pipeline->status = status;
        snprintf(pipeline->failure_text, sizeof pipeline->failure_text, "%s", gsync_last_error());
        pipeline->is_refused = is_refused;
    } else {
        go_on_after_buckets(pipeline, status, is_refused);
    }
}

bool gs_pipeline_has_ended(gs_pipeline *pipeline, gsync_status *status) {
    if (atomic_load(&pipeline->is_ended) == 0) {
        return false;
    }
    *status = pipeline->status;
    if (*status != GSYNC_OK) {
        /* It may have been discovered on the helper's thread. */
        (void)gs_fail(*status, "%s", pipeline->failure_text);
    }
    return true;
}

/* ---- one bucket ---- */

static void set_verdict(const gs_pipeline *pipeline, gs_lane_operation *operation) {
    if (pipeline->refused_bucket == pipeline->bucket) {
        operation->verdict = GSYNC_ERR_INCOMPLETE;
        operation->verdict_index = pipeline->refusal_index;
        return;
    }
    if (pipeline->terms.checks_writes) {
        const uint32_t changed = gs_bucket_find_changed(pipeline, pipeline->bucket);
        if (changed != GS_NO_BUCKET) {
            operation->verdict = GSYNC_ERR_CHANGED;
            operation->verdict_index = changed;
        }
    }
}

static gsync_status post_bucket(gs_pipeline *pipeline) {
    const gs_bucket *bucket = &pipeline->plan->buckets[pipeline->bucket];
    gs_lane_operation operation = {
        .kind = GS_LANE_REDUCE,
        .topic = {.what = "bucket",
                  .step = pipeline->step.step,
                  .part = pipeline->bucket,
                  .digest = pipeline->plan->digest},
        .contributes = pipeline->step.contributes,
        .weight = pipeline->step.weight,
        .micro_batches = pipeline->step.micro_batches,
        .compares_micro_batches = pipeline->terms.compares_micro_batches && !pipeline->step.ends_early,
        .count = bucket->element_count,
        .dtype = gs_narrow_dtype(pipeline, pipeline->bucket),
        .op = GSYNC_SUM,
        .wire = gs_narrow_prepare(pipeline, pipeline->bucket),
        .result_dtype = bucket->dtype,
        .loss_scale = pipeline->step.loss_scale,
        .looks = pipeline->terms.looks,
        .divide = pipeline->terms.divide,
        .divides_by_micro_batches = pipeline->terms.divides_by_micro_batches,
    };
    if (pipeline->sparse.sent == 0) {
        gs_choice_note_launch(pipeline);
    }
    set_verdict(pipeline, &operation);
    if (gs_sparse_is_on(pipeline, pipeline->bucket)) {
        gs_sparse_offer(pipeline, &operation);
    } else if (operation.verdict == GSYNC_OK) {
        gs_bucket_offer(pipeline, pipeline->bucket, &operation);
    }
    return gs_lane_post(pipeline->lane, &operation);
}

/* Puts gradient names into what the lane found out. */
static void word_failure(gs_pipeline *pipeline, gsync_status status) {
    const gs_lane_outcome *outcome = &pipeline->outcome;
    const gs_bucket *bucket = &pipeline->plan->buckets[pipeline->bucket];
    const uint32_t *members = &pipeline->plan->members[bucket->first];
    const uint32_t index = outcome->verdict_index;
    const char *name = index < pipeline->plan->gradient_count ? pipeline->gradients[index].name : "?";
    if (outcome->refusing_rank >= 0 && status == GSYNC_ERR_CHANGED) {
        (void)gs_gradient_fail_changed(name, outcome->refusing_rank);
    } else if (outcome->refusing_rank >= 0) {
        (void)gs_fail(status,
                      "rank %d: gradient '%s' was never marked ready in this micro-batch: mark it with gsync_ready, or "
                      "set finds_unused",
                      outcome->refusing_rank, name);
    } else {
        const char *first = pipeline->gradients[members[0]].name;
        const char *last = pipeline->gradients[members[bucket->gradient_count - 1]].name;
        gs_fail_prefix(bucket->gradient_count == 1 ? "gradient '%s': " : "gradients '%s' to '%s': ", first, last);
    }
    pipeline->is_torn = outcome->is_data_touched && !pipeline->terms.is_deferred;
}

/* ---- progress ---- */

static gsync_status post(gs_pipeline *pipeline) {
    GS_TRY(pipeline->epilogue != GS_EPILOGUE_NONE ? gs_epilogue_post(pipeline) : post_bucket(pipeline));
    pipeline->is_posted = true;
    return GSYNC_OK;
}

/* GSYNC_OK with *is_done false: the bucket, or the epilogue, has to wait. */
static gsync_status move(gs_pipeline *pipeline, bool *is_done, bool *did_work) {
    *is_done = false;
    *did_work = false;
    if (!pipeline->is_posted) {
        *did_work = true;
        GS_TRY(post(pipeline));
    }
    bool moved;
    GS_TRY(gs_lane_progress(pipeline->lane, is_done, &moved));
    *did_work = *did_work || moved;
    return GSYNC_OK;
}

static void complete_bucket(gs_pipeline *pipeline) {
    pipeline->outcome = *gs_lane_last_outcome(pipeline->lane);
    gs_findings_note(pipeline, pipeline->bucket, &pipeline->outcome.findings);
    gs_choice_note(pipeline, pipeline->bucket, gs_choice_since_launch(pipeline));
    GS_LOG(&pipeline->group->logger, GSYNC_LOG_TRACE, "rank %d bucket %zu: reduced", pipeline->group->rank,
           pipeline->bucket);
    pipeline->bucket++;
    atomic_store(&pipeline->reduced, pipeline->terms.is_deferred ? 0 : pipeline->bucket);
    if (pipeline->bucket == pipeline->plan->bucket_count) {
        begin_epilogue(pipeline);
    }
}

static bool is_early(const gs_pipeline *pipeline) {
    return atomic_load(&pipeline->early_order) == GS_EARLY_UNDER_WAY;
}

static void fail(gs_pipeline *pipeline, gsync_status status) {
    pipeline->is_posted = false;
    if (is_early(pipeline)) {
        end_early_order(pipeline, status);
        return;
    }
    if (pipeline->epilogue != GS_EPILOGUE_NONE) {
        end(pipeline, status);
        return;
    }
    pipeline->outcome = *gs_lane_last_outcome(pipeline->lane);
    word_failure(pipeline, status);
    if (status == GSYNC_ERR_INCOMPLETE && pipeline->outcome.refusing_rank >= 0) {
        pipeline->epilogue = GS_EPILOGUE_MISSING; /* the refusal told one name; there may be more */
    } else {
        end(pipeline, status);
    }
}

static void complete(gs_pipeline *pipeline) {
    gsync_status status = GSYNC_OK;
    pipeline->is_posted = false;
    if (pipeline->epilogue == GS_EPILOGUE_NONE) {
        bool has_more = false;
        if (gs_sparse_is_on(pipeline, pipeline->bucket)) {
            status = gs_sparse_take(pipeline, &has_more);
        }
        if (status != GSYNC_OK) {
            fail(pipeline, status);
        } else if (!has_more) {
            complete_bucket(pipeline);
        }
        return;
    }
    status = gs_epilogue_take(pipeline);
    if (is_early(pipeline)) {
        if (status != GSYNC_OK || pipeline->epilogue == GS_EPILOGUE_NONE) {
            end_early_order(pipeline, status);
        }
        return;
    }
    if (status != GSYNC_OK || pipeline->epilogue == GS_EPILOGUE_NONE) {
        end(pipeline, status);
    }
}

static bool has_work(const gs_pipeline *pipeline) {
    return is_telling_early(pipeline) ||
           (atomic_load(&pipeline->is_ended) == 0 &&
            (pipeline->epilogue != GS_EPILOGUE_NONE || pipeline->bucket < atomic_load(&pipeline->launched)));
}

static bool progress(gs_pipeline *pipeline, bool *is_waiting) {
    bool did_work = false;
    *is_waiting = false;
    while (has_work(pipeline)) {
        begin_early_order(pipeline);
        bool is_done;
        bool moved;
        const gsync_status status = move(pipeline, &is_done, &moved);
        did_work = did_work || moved || status != GSYNC_OK;
        if (status != GSYNC_OK) {
            fail(pipeline, status);
        } else if (is_done) {
            complete(pipeline);
        } else {
            *is_waiting = true;
            return did_work;
        }
    }
    return did_work;
}

/* What is found is compared here, and must be seen by ranks that flush subnormals as by those that do not. */
bool gs_pipeline_progress(gs_pipeline *pipeline, bool *is_waiting) {
    gs_float_mode mode;
    gs_float_mode_enter(&mode);
    const bool did_work = progress(pipeline, is_waiting);
    gs_float_mode_leave(&mode);
    return did_work;
}
