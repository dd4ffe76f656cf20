/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include "base/clock.h"
#include "base/float_mode.h"
#include "base/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- begin ---- */

/* Whether the ranks have to tell each other what they notice. */
static bool looks(const gsync_reducer *reducer) {
    const gsync_options *options = &reducer->options;
    return reducer->needs_findings || options->checks_finite != 0 || options->computes_norm != 0 ||
           reducer->scaler != NULL;
}

static void begin_pipeline(gsync_reducer *reducer) {
    const gs_step_terms step = {
        .step = reducer->step + 1,
        .micro_batches = reducer->window_micro_batches,
        .weight = reducer->window_weight,
        .factor = reducer->options.weighting == GSYNC_WEIGHT_OF_MEANS ? 0.0 : 1.0,
        .loss_scale = reducer->scaler != NULL ? gsync_scaler_scale(reducer->scaler) : 1.0,
        .contributes = true,
        .has_gradient = true,
        .wants_order = reducer->observes_order,
    };
    gs_engine_lock(&reducer->comm->engine);
    reducer->pipeline.terms.looks = looks(reducer);
    gs_pipeline_begin(&reducer->pipeline, &step);
    gs_engine_unlock(&reducer->comm->engine);
}

static gsync_status begin_stream(gsync_reducer *reducer, gsync_phase phase) {
    return reducer->stream != NULL && reducer->plan.bucket_count != 0 ? gs_step_device_begin(reducer, phase) : GSYNC_OK;
}

static void open_window(gsync_reducer *reducer) {
    if (reducer->scaler != NULL && !reducer->has_open_window) {
        gs_scaler_open_window(reducer->scaler);
        reducer->has_open_window = true;
    }
}

static gsync_status begin(gsync_reducer *reducer, gsync_phase phase, const char *call) {
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_IDLE, call));
    if (phase != GSYNC_SYNC && phase != GSYNC_ACCUMULATE) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_begin: %d is no gsync_phase", (int)phase);
    }
    if (reducer->window_micro_batches == UINT32_MAX) {
        return gs_fail(GSYNC_ERR_STATE, "gsync_begin: the window has too many micro-batches: close it");
    }
    GS_TRY(begin_stream(reducer, phase));
    if (reducer->gradient_count != 0) {
        gs_ready_ledger_reset(&reducer->ledger, &reducer->plan, reducer->window_micro_batches == 0);
        gs_launch_order_reset(&reducer->launch, reducer->plan.bucket_count);
    }
    for (size_t i = 0; reducer->options.checks_writes && i < reducer->gradient_count; i++) {
        reducer->gradients[i].is_hashed = false;
    }
    reducer->phase = phase;
    reducer->is_synced = false;
    reducer->micro_weight = 0;
    reducer->lacks_weight = reducer->options.op == GSYNC_WEIGHTED_MEAN;
    open_window(reducer);
    reducer->window_micro_batches++;
    if (phase == GSYNC_SYNC) {
        begin_pipeline(reducer);
    }
    gs_reducer_set_stage(reducer, GS_REDUCER_ARMED);
    return GSYNC_OK;
}

gsync_status gsync_begin(gsync_reducer *reducer, gsync_phase phase) {
    return gs_comm_report(gs_reducer_comm(reducer), begin(reducer, phase, "gsync_begin"));
}

static bool has_marks(const gsync_reducer *reducer) {
    if (reducer->gradient_count == 0) {
        return false;
    }
    bool has_any = atomic_load(&reducer->ledger.order_count) != 0;
    /* Some, but not all, of a shared weight's marks are in no order yet. */
    for (size_t i = 0; reducer->has_shared_weights && !has_any && i < reducer->gradient_count; i++) {
        has_any = atomic_load_explicit(&reducer->ledger.marks[i], memory_order_relaxed) != 0;
    }
    return has_any;
}

static gsync_status set_weight(gsync_reducer *reducer, double weight) {
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_ARMED, "gsync_set_weight"));
    if (!isfinite(weight) || weight < 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_set_weight: %g is not a finite weight of 0 or more", weight);
    }
    if (has_marks(reducer)) {
        return gs_fail(GSYNC_ERR_STATE, "gsync_set_weight: call it before the first gsync_ready of the micro-batch");
    }
    reducer->micro_weight = weight;
    reducer->lacks_weight = false;
    if (reducer->phase == GSYNC_SYNC) {
        gs_engine_lock(&reducer->comm->engine);
        reducer->pipeline.step.weight = reducer->window_weight + weight;
        if (reducer->options.weighting == GSYNC_WEIGHT_OF_MEANS) {
            reducer->pipeline.step.factor = weight;
        }
        gs_engine_unlock(&reducer->comm->engine);
    }
    return GSYNC_OK;
}

gsync_status gsync_set_weight(gsync_reducer *reducer, double weight) {
    return gs_comm_report(gs_reducer_comm(reducer), set_weight(reducer, weight));
}

/* ---- ready ---- */

static void launch_full(gsync_reducer *reducer, uint32_t bucket) {
    /* Counting and launching are one decision: the pipeline is told the buckets in plan order. */
    pthread_mutex_lock(&reducer->launch_lock);
    const size_t count = gs_launch_order_fill(&reducer->launch, bucket);
    bool has_work = count != 0;
    if (count != 0 && reducer->stream != NULL) {
        has_work = gs_step_device_launch(reducer, count);
    } else if (count != 0) {
        gs_pipeline_launch(&reducer->pipeline, count);
    }
    pthread_mutex_unlock(&reducer->launch_lock);
    if (has_work) {
        gs_engine_kick(&reducer->comm->engine);
    }
}

static gsync_status refuse_mark(const gsync_reducer *reducer, uint32_t index) {
    const uint32_t uses = reducer->shapes[index].uses;
    return gs_fail(GSYNC_ERR_ALREADY_READY,
                   "rank %d: gradient '%s' was marked ready more than %u time%s in this micro-batch: mark it that "
                   "often, or declare more uses with gsync_reducer_set_uses",
                   reducer->comm->group->rank, reducer->gradients[index].name, uses, uses == 1 ? "" : "s");
}

static gs_mark count_mark(gsync_reducer *reducer, uint32_t index, void *const *producer) {
    if (!reducer->options.checks_writes) {
        return gs_ready_ledger_mark(&reducer->ledger, &reducer->plan, reducer->shapes, index);
    }
    const gs_mark counted = gs_ready_ledger_count(&reducer->ledger, &reducer->plan, reducer->shapes, index);
    if (counted != GS_MARK_COUNTED) {
        return counted;
    }
    /* By the last marker alone, since until then another thread may be writing; and before the bucket can go. */
    if (reducer->stream != NULL) {
        gs_step_device_note_mark(reducer, index, producer);
    } else {
        gs_pipeline_note_hash(&reducer->gradients[index]);
    }
    return gs_ready_ledger_complete(&reducer->ledger, &reducer->plan, index);
}

gsync_status gs_reducer_mark(gsync_reducer *reducer, uint32_t index, void *const *producer) {
    switch (count_mark(reducer, index, producer)) {
    case GS_MARK_TOO_OFTEN:
        return refuse_mark(reducer, index);
    case GS_MARK_BUCKET_FULL:
        if (reducer->phase == GSYNC_SYNC) {
            launch_full(reducer, reducer->plan.bucket_of[index]);
        }
        break;
    case GS_MARK_COUNTED:
    case GS_MARK_MORE_USES:
        break;
    }
    return GSYNC_OK;
}

/* A forgotten weight would count as nothing, silently. */
gsync_status gs_reducer_check_weight(const gsync_reducer *reducer, const char *call) {
    if (reducer->lacks_weight) {
        return gs_fail(GSYNC_ERR_STATE,
                       "%s: with GSYNC_WEIGHTED_MEAN call gsync_set_weight first in every micro-batch (0 is a weight)",
                       call);
    }
    return GSYNC_OK;
}

gsync_status gs_reducer_find_marked(const gsync_reducer *reducer, const void *grad, const char *call, uint32_t *index) {
    if (reducer == NULL || gs_reducer_get_stage(reducer) != GS_REDUCER_ARMED) {
        return gs_reducer_check(reducer, GS_REDUCER_ARMED, call);
    }
    GS_TRY(gs_reducer_check_weight(reducer, call));
    *index = gs_index_map_find(&reducer->addresses, (uintptr_t)grad);
    if (*index == GS_NO_INDEX || grad == NULL) {
        return gs_fail(GSYNC_ERR_UNKNOWN_GRADIENT,
                       "%s: no gradient is registered at %p; one that has moved needs gsync_reducer_rebind", call,
                       grad);
    }
    if (!reducer->shapes[*index].is_trainable) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: gradient '%s' is frozen", call, reducer->gradients[*index].name);
    }
    *index = reducer->shapes[*index].count != 0 ? *index : GS_NO_INDEX;
    return GSYNC_OK;
}

static gsync_status ready(gsync_reducer *reducer, const void *grad) {
    uint32_t index = GS_NO_INDEX;
    GS_TRY(gs_reducer_find_marked(reducer, grad, "gsync_ready", &index));
    return index != GS_NO_INDEX ? gs_reducer_mark(reducer, index, NULL) : GSYNC_OK;
}

gsync_status gsync_ready(gsync_reducer *reducer, const void *grad) {
    const gsync_status status = ready(reducer, grad);
    return status == GSYNC_OK ? status : gs_comm_report(gs_reducer_comm(reducer), status);
}

gsync_status gsync_ready_list(gsync_reducer *reducer, const void *const *grads, size_t n) {
    gsync_status first = GSYNC_OK;
    if (grads == NULL && n != 0) {
        return gs_comm_report(gs_reducer_comm(reducer), gs_fail(GSYNC_ERR_ARGUMENT, "gsync_ready_list: grads is NULL"));
    }
    for (size_t i = 0; i < n; i++) {
        const gsync_status status = gsync_ready(reducer, grads[i]);
        first = first == GSYNC_OK ? status : first;
    }
    return first;
}

/* ---- finish: synchronise ---- */

bool gs_reducer_is_missing(const gsync_reducer *reducer, uint32_t index) {
    return !gs_ready_ledger_is_ready(&reducer->ledger, &reducer->plan, reducer->shapes, index);
}

void gs_reducer_list_missing(const gsync_reducer *reducer, char *names, size_t size) {
    size_t used = 0;
    names[0] = '\0';
    for (uint32_t i = 0; i < reducer->gradient_count; i++) {
        char name[128];
        const int length = snprintf(name, sizeof name, "'%.100s'", reducer->gradients[i].name);
        if (gs_reducer_is_missing(reducer, i) && used + (size_t)length + 3 < size) {
            used += (size_t)snprintf(names + used, size - used, "%s%s", used == 0 ? "" : ", ", name);
        }
    }
}

/* Tells the others, at the first bucket that cannot go, that this rank will not reduce it. */
static void refuse_incomplete(gsync_reducer *reducer) {
    const size_t bucket = reducer->launch.next;
    const gs_bucket *refused = &reducer->plan.buckets[bucket];
    const uint32_t *members = &reducer->plan.members[refused->first];
    char names[GS_MISSING_TEXT_MAX];
    uint32_t i = 0;
    while (i + 1 < refused->gradient_count && !gs_reducer_is_missing(reducer, members[i])) {
        i++;
    }
    gs_reducer_list_missing(reducer, names, sizeof names);
    gs_engine_lock(&reducer->comm->engine);
    gs_pipeline_refuse(&reducer->pipeline, bucket, members[i], names);
    gs_engine_unlock(&reducer->comm->engine);
}

static void launch_rest(gsync_reducer *reducer, bool may_refuse) {
    if (reducer->gradient_count == 0) {
        return;
    }
    if (may_refuse && reducer->options.is_strict && reducer->launch.next < reducer->plan.bucket_count) {
        refuse_incomplete(reducer);
    }
    gs_pipeline_launch(&reducer->pipeline, gs_launch_order_fill_all(&reducer->launch));
}

static void note_outcome(gsync_reducer *reducer) {
    const gs_pipeline *pipeline = &reducer->pipeline;
    gsync_step_info *info = &reducer->info;
    const gs_lane_outcome *outcome = &pipeline->outcome;
    info->micro_batches = pipeline->step.micro_batches;
    info->participants = outcome->participants;
    info->divisor = outcome->divisor;
    info->weight_total = outcome->weight_total;
    info->bucket_count = pipeline->plan->bucket_count;
    info->buckets_launched = atomic_load(&pipeline->launched);
}

static void note_findings(gsync_reducer *reducer) {
    const gs_step_findings *findings = &reducer->pipeline.findings;
    gsync_step_info *info = &reducer->info;
    info->loss_scale = reducer->pipeline.step.loss_scale;
    info->grad_norm = reducer->options.computes_norm != 0 ? sqrt(findings->square_sum) : 0.0;
    info->found_inf = findings->has_nonfinite;
    info->found_inf_rank = findings->has_nonfinite ? findings->rank : -1;
    info->found_inf_gradient = findings->has_nonfinite ? reducer->gradients[findings->gradient].name : NULL;
    info->values_saturated = findings->saturated;
    info->values_flushed = findings->flushed;
}

static void note_end(gsync_reducer *reducer) {
    const gs_pipeline *pipeline = &reducer->pipeline;
    gsync_step_info *info = &reducer->info;
    info->step = reducer->step;
    info->buckets_reduced = atomic_load(&pipeline->reduced);
    info->has_torn_bucket = pipeline->is_torn;
    info->bytes_reduced = pipeline->bytes_reduced;
    info->bytes_copied = pipeline->bytes_copied;
    info->bytes_wire = gs_lane_bytes_sent(pipeline->lane) - pipeline->bytes_sent_before;
    note_findings(reducer);
    GS_LOG(&reducer->comm->logger, GSYNC_LOG_DEBUG, "rank %d step %llu: %zu of %zu buckets reduced",
           reducer->comm->group->rank, (unsigned long long)info->step, info->buckets_reduced, info->bucket_count);
    const bool is_told = reducer->options.finds_unused && gs_reducer_knows_used(reducer);
    for (size_t i = 0; is_told && i < reducer->gradient_count; i++) {
        info->gradients_unused +=
            reducer->shapes[i].is_trainable && reducer->shapes[i].count != 0 && !reducer->gradients[i].is_used_anywhere;
    }
}

void gs_reducer_close_window(gsync_reducer *reducer) {
    if (reducer->has_open_window) {
        gs_scaler_close_window(reducer->scaler, reducer->is_synced, reducer->info.found_inf != 0);
        reducer->has_open_window = false;
    }
    reducer->window_micro_batches = 0;
    reducer->window_weight = 0;
    for (size_t i = 0; gs_reducer_overwrites(reducer) && i < reducer->gradient_count; i++) {
        reducer->gradients[i].has_accumulated = false;
    }
}

static gsync_status reduce_on_host(gsync_reducer *reducer, bool may_refuse) {
    gs_engine_attend(&reducer->comm->engine);
    launch_rest(reducer, may_refuse);
    return gs_engine_wait(&reducer->comm->engine, &reducer->pipeline);
}

static gsync_status check_replicas(gsync_reducer *reducer) {
    gs_engine *engine = &reducer->comm->engine;
    if (reducer->stream == NULL) {
        return gs_pipeline_check_replicas(&reducer->pipeline, NULL, gs_engine_idle_function(engine), engine);
    }
    reducer->owes_replicas = reducer->has_consumer;
    return reducer->owes_replicas ? GSYNC_OK : gs_step_device_check_replicas(reducer);
}

static gsync_status finish_synchronising(gsync_reducer *reducer, bool may_refuse) {
    gs_engine *engine = &reducer->comm->engine;
    if (reducer->plan.bucket_count == 0) {
        reducer->has_waited = true;
        reducer->step++;
        return GSYNC_OK; /* nothing to learn, nothing to send */
    }
    const gsync_status status =
        reducer->stream != NULL ? gs_step_device_finish(reducer, may_refuse) : reduce_on_host(reducer, may_refuse);
    note_outcome(reducer);
    GS_TRY(status);
    GS_TRY(gs_pipeline_settle(&reducer->pipeline, gs_engine_idle_function(engine), engine));
    reducer->step++;
    if (gs_reducer_compares_replicas(reducer, reducer->step)) {
        GS_TRY(check_replicas(reducer));
    }
    return reducer->observes_order && !reducer->owes_order ? gs_reducer_take_order(reducer) : GSYNC_OK;
}

/* ---- finish ---- */

static gsync_status end_micro_batch(gsync_reducer *reducer, gsync_status status) {
    if (reducer->phase == GSYNC_SYNC) {
        note_end(reducer);
        reducer->is_synced = status == GSYNC_OK;
    }
    if (reducer->phase == GSYNC_SYNC || status != GSYNC_OK) {
        gs_reducer_close_window(reducer);
    }
    reducer->has_finished = true;
    /* A lane that broke behind a step that was right says why in the next one. */
    const bool is_broken = status != GSYNC_OK && gs_lane_is_broken(reducer->pipeline.lane);
    const bool has_failed = gs_status_is_for_good(status) || is_broken;
    gs_reducer_set_stage(reducer, has_failed ? GS_REDUCER_FAILED : GS_REDUCER_IDLE);
    return status;
}

static gsync_status finish_armed(gsync_reducer *reducer, bool may_refuse) {
    const uint64_t start = gs_clock_ns();
    reducer->info =
        (gsync_step_info){.struct_size = sizeof reducer->info, .divisor = 1.0, .loss_scale = 1.0, .found_inf_rank = -1};
    const gsync_status status =
        reducer->phase == GSYNC_SYNC ? finish_synchronising(reducer, may_refuse) : gs_step_accumulate(reducer);
    reducer->info.exposed_ns = gs_clock_ns() - start;
    return end_micro_batch(reducer, status);
}

static gsync_status check_finish(const gsync_reducer *reducer, const gsync_step_info *info, const char *call) {
    if (reducer == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: the reducer is NULL", call);
    }
    return gs_options_check_output(info, "gsync_step_info");
}

static gsync_status give_info(const gsync_reducer *reducer, gsync_step_info *info, gsync_status status) {
    (void)gs_options_give(info, &reducer->info, sizeof reducer->info, "gsync_step_info");
    return gs_comm_report(reducer->comm, status);
}

gsync_status gs_reducer_finish(gsync_reducer *reducer, gsync_step_info *info, const char *call) {
    gsync_status status = check_finish(reducer, info, call);
    if (status != GSYNC_OK) {
        return gs_comm_report(gs_reducer_comm(reducer), status);
    }
    if (gs_reducer_get_stage(reducer) == GS_REDUCER_IDLE && reducer->has_finished) {
        return give_info(reducer, info, GSYNC_OK); /* called twice */
    }
    status = gs_reducer_check(reducer, GS_REDUCER_ARMED, call);
    if (status == GSYNC_OK) {
        status = gs_reducer_check_weight(reducer, call);
    }
    if (status != GSYNC_OK) {
        return gs_comm_report(reducer->comm, status);
    }
    return give_info(reducer, info, finish_armed(reducer, true));
}

gsync_status gsync_finish(gsync_reducer *reducer, gsync_step_info *info) {
    return gs_reducer_finish(reducer, info, "gsync_finish");
}

/* This micro-batch does not count; what the window holds so far does. */
static void empty_micro_batch(gsync_reducer *reducer) {
    reducer->window_micro_batches--;
    reducer->micro_weight = 0;
    gs_step_terms step = reducer->pipeline.step;
    step.micro_batches = reducer->window_micro_batches;
    step.weight = reducer->window_weight;
    step.factor = 1.0;
    step.contributes = reducer->window_micro_batches != 0;
    step.has_gradient = step.contributes && !gs_reducer_overwrites(reducer);
    step.ends_early = true;
    gs_engine_lock(&reducer->comm->engine);
    gs_pipeline_begin(&reducer->pipeline, &step);
    gs_engine_unlock(&reducer->comm->engine);
}

static gsync_status begin_empty(gsync_reducer *reducer) {
    if (gs_reducer_get_stage(reducer) != GS_REDUCER_ARMED) {
        GS_TRY(begin(reducer, GSYNC_SYNC, "gsync_finish_empty"));
    }
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_ARMED, "gsync_finish_empty"));
    if (reducer->phase != GSYNC_SYNC || has_marks(reducer)) {
        return gs_fail(GSYNC_ERR_STATE, "gsync_finish_empty: this micro-batch %s: end it with gsync_finish",
                       reducer->phase != GSYNC_SYNC ? "was begun with GSYNC_ACCUMULATE" : "has gradients marked ready");
    }
    empty_micro_batch(reducer);
    return GSYNC_OK;
}

gsync_status gsync_finish_empty(gsync_reducer *reducer, gsync_step_info *info) {
    gsync_status status = check_finish(reducer, info, "gsync_finish_empty");
    if (status == GSYNC_OK) {
        status = begin_empty(reducer);
    }
    if (status != GSYNC_OK) {
        return gs_comm_report(gs_reducer_comm(reducer), status);
    }
    return give_info(reducer, info, finish_armed(reducer, false));
}
