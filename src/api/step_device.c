/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

/*
 * What a step does differently when gradients are on a GPU: launched buckets are queued on a stream at once, and nobody
 * has to make them move. Only what the ranks tell each other afterwards goes over the lane.
 */

/* ---- begin ---- */

/* Moves the pipeline's epilogue to its end. */
static gsync_status run_epilogue(gsync_reducer *reducer, gsync_status own, bool is_refused) {
    gs_engine *engine = &reducer->comm->engine;
    gs_engine_attend(engine);
    gs_engine_lock(engine);
    gs_pipeline_conclude(&reducer->pipeline, reducer->stream_ops->launched(reducer->stream), own, is_refused);
    gs_engine_unlock(engine);
    return gs_engine_wait(engine, &reducer->pipeline);
}

gsync_status gs_step_device_check_replicas(gsync_reducer *reducer) {
    gs_engine *engine = &reducer->comm->engine;
    const gs_idle_function idle = gs_engine_idle_function(engine);
    const uint64_t *digests;
    reducer->owes_replicas = false;
    GS_TRY(reducer->stream_ops->digests(reducer->stream, idle, engine, &digests));
    return gs_pipeline_check_replicas(&reducer->pipeline, digests, idle, engine);
}

/* *owes_choice: now the ranks have to make one. */
static gsync_status read_times(gsync_reducer *reducer, bool *owes_choice) {
    gs_engine *engine = &reducer->comm->engine;
    *owes_choice = reducer->owes_times && gs_choice_is_due(&reducer->pipeline);
    if (!reducer->owes_times) {
        return GSYNC_OK;
    }
    reducer->owes_times = false;
    return reducer->stream_ops->times(reducer->stream, gs_engine_idle_function(engine), engine);
}

/* One after the other, since all of it goes over the lane; and the order last, because it changes the plan. */
static gsync_status catch_up(gsync_reducer *reducer) {
    const bool owes_order = reducer->owes_order;
    bool owes_choice;
    reducer->owes_order = false;
    GS_TRY(read_times(reducer, &owes_choice));
    if (owes_order || owes_choice) {
        GS_TRY(run_epilogue(reducer, GSYNC_OK, false));
    }
    if (reducer->owes_replicas) {
        GS_TRY(gs_step_device_check_replicas(reducer));
    }
    return owes_order ? gs_reducer_take_order(reducer) : GSYNC_OK;
}

gsync_status gs_step_device_catch_up(gsync_reducer *reducer) {
    const gsync_status status = catch_up(reducer);
    return status == GSYNC_OK ? GSYNC_OK : reducer->stream_ops->explain(reducer->stream, status);
}

void gs_step_device_rest(const gsync_reducer *reducer, bool commits) {
    if (reducer->stream != NULL) {
        reducer->stream_ops->rest(reducer->stream, reducer->step, commits);
    }
}

gsync_status gs_step_device_begin(gsync_reducer *reducer, gsync_phase phase) {
    const uint64_t step = phase == GSYNC_SYNC ? reducer->step + 1 : 0;
    GS_TRY(gs_step_device_catch_up(reducer));
    return reducer->stream_ops->begin(reducer->stream, reducer->window_micro_batches == 0, step);
}

/* ---- late writes ---- */

void gs_step_device_note_mark(gsync_reducer *reducer, uint32_t index, void *const *producer) {
    /* The other uses of a shared weight may be other streams'. */
    void *const *alone = reducer->shapes[index].uses == 1 ? producer : NULL;
    if (reducer->plan.bucket_of[index] != GS_NO_BUCKET) {
        reducer->stream_ops->note_mark(reducer->stream, &reducer->launch_lock, index, alone);
    }
}

/* This rank's gradient that was written after it was marked; GS_NO_BUCKET: none. */
static gsync_status find_changed(gsync_reducer *reducer, uint32_t *changed) {
    gs_engine *engine = &reducer->comm->engine;
    const uint64_t *marked;
    const uint64_t *now;
    *changed = GS_NO_BUCKET;
    GS_TRY(reducer->stream_ops->compare_marks(reducer->stream, gs_engine_idle_function(engine), engine, &marked, &now));
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        const bool counts = reducer->plan.bucket_of[i] != GS_NO_BUCKET && !gs_reducer_is_missing(reducer, (uint32_t)i);
        if (counts && marked[i] != now[i] && *changed == GS_NO_BUCKET) {
            *changed = (uint32_t)i;
        }
    }
    return GSYNC_OK;
}

gsync_status gs_step_device_check_writes(gsync_reducer *reducer) {
    uint32_t changed = GS_NO_BUCKET;
    if (reducer->plan.bucket_count != 0) {
        GS_TRY(find_changed(reducer, &changed));
    }
    return changed == GS_NO_BUCKET
               ? GSYNC_OK
               : gs_gradient_fail_changed(reducer->gradients[changed].name, reducer->comm->group->rank);
}

/* Of all ranks, before any result is written. */
static gsync_status check_all_writes(gsync_reducer *reducer) {
    gs_engine *engine = &reducer->comm->engine;
    uint32_t changed;
    if (!reducer->options.checks_writes) {
        return GSYNC_OK;
    }
    GS_TRY(find_changed(reducer, &changed));
    return gs_pipeline_agree_on_writes(&reducer->pipeline, changed, gs_engine_idle_function(engine), engine);
}

/* ---- ready ---- */

/* Whether the order may be told. What is said of late writes comes before it. */
bool gs_step_device_launch(gsync_reducer *reducer, size_t bucket_count) {
    reducer->stream_ops->launch(reducer->stream, bucket_count);
    if (reducer->launch.next < reducer->plan.bucket_count || !reducer->pipeline.step.wants_order ||
        reducer->options.checks_writes) {
        return false;
    }
    gs_pipeline_tell_order(&reducer->pipeline);
    return true;
}

/* ---- finish ---- */

static void refuse_missing(gsync_reducer *reducer) {
    char names[GS_MISSING_TEXT_MAX];
    uint32_t first = GS_NO_INDEX;
    for (uint32_t i = 0; i < reducer->gradient_count; i++) {
        if (gs_reducer_is_missing(reducer, i)) {
            reducer->stream_ops->refuse(reducer->stream, i);
            first = first == GS_NO_INDEX ? i : first;
        }
    }
    gs_reducer_list_missing(reducer, names, sizeof names);
    gs_engine_lock(&reducer->comm->engine);
    gs_pipeline_refuse(&reducer->pipeline, reducer->launch.next, first, names);
    gs_engine_unlock(&reducer->comm->engine);
}

static void launch_rest(gsync_reducer *reducer, bool may_refuse) {
    const bool has_rest = reducer->launch.next < reducer->plan.bucket_count;
    pthread_mutex_lock(&reducer->launch_lock);
    if (has_rest && reducer->has_consumer) {
        reducer->stream_ops->follow(reducer->stream, reducer->consumer);
    }
    if (has_rest && may_refuse && reducer->options.is_strict) {
        refuse_missing(reducer);
    }
    const bool has_work = gs_step_device_launch(reducer, gs_launch_order_fill_all(&reducer->launch));
    pthread_mutex_unlock(&reducer->launch_lock);
    if (has_work) {
        gs_engine_kick(&reducer->comm->engine);
    }
}

static gsync_status leave(gsync_reducer *reducer) {
    const gs_stream_ops *ops = reducer->stream_ops;
    gs_pipeline *pipeline = &reducer->pipeline;
    ops->let_follow(reducer->stream, reducer->consumer);
    ops->end(reducer->stream, false);
    const gsync_status own = ops->leave(reducer->stream);
    gs_engine *engine = &reducer->comm->engine;
    reducer->owes_order = own == GSYNC_OK && pipeline->step.wants_order;
    reducer->owes_times = own == GSYNC_OK && gs_choice_has_trials(pipeline);
    gs_engine_lock(engine);
    pipeline->terms.looks = false;
    gs_pipeline_leave(pipeline, ops->launched(reducer->stream), own);
    gs_engine_unlock(engine);
    return own;
}

gsync_status gs_step_device_finish(gsync_reducer *reducer, bool may_refuse) {
    const gs_stream_ops *ops = reducer->stream_ops;
    gs_engine *engine = &reducer->comm->engine;
    bool is_refused;
    launch_rest(reducer, may_refuse);
    const gsync_status unchanged = check_all_writes(reducer);
    if (unchanged != GSYNC_OK) {
        return run_epilogue(reducer, unchanged, false);
    }
    ops->settle(reducer->stream, gs_reducer_compares_replicas(reducer, reducer->step + 1));
    reducer->has_waited = !reducer->has_consumer;
    if (reducer->has_consumer) {
        return leave(reducer);
    }
    ops->end(reducer->stream, reducer->pipeline.terms.looks);
    const gsync_status own = ops->wait(reducer->stream, gs_engine_idle_function(engine), engine, &is_refused);
    GS_TRY(run_epilogue(reducer, own, is_refused));
    ops->settle_feedback(reducer->stream);
    return GSYNC_OK;
}

gsync_status gs_step_device_accumulate(gsync_reducer *reducer) {
    const bool weighs = reducer->options.weighting == GSYNC_WEIGHT_OF_MEANS;
    const gs_stream_ops *ops = reducer->stream_ops;
    gs_engine *engine = &reducer->comm->engine;
    if (reducer->plan.bucket_count == 0) {
        return GSYNC_OK;
    }
    if (reducer->has_consumer) {
        ops->follow(reducer->stream, reducer->consumer);
    }
    ops->accumulate(reducer->stream, weighs ? reducer->micro_weight : 1.0);
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        const bool is_unused = reducer->options.finds_unused && atomic_load(&reducer->ledger.marks[i]) == 0;
        reducer->gradients[i].has_accumulated |= reducer->plan.bucket_of[i] != GS_NO_BUCKET && !is_unused;
    }
    if (!reducer->has_consumer) {
        return ops->wait_for_sums(reducer->stream, gs_engine_idle_function(engine), engine);
    }
    ops->let_follow(reducer->stream, reducer->consumer);
    return ops->leave(reducer->stream);
}
