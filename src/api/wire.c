/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include "base/memory.h"

#include <fnmatch.h>

/* Which gradients travel how. */

static bool matches(const gs_gradient *gradient, const char *pattern) {
    return pattern == NULL || fnmatch(pattern, gradient->name, 0) == 0;
}

static gsync_status check_pattern(const gsync_reducer *reducer, const char *pattern, const char *call) {
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_OPEN, call));
    if (reducer->was_committed) {
        return gs_fail(GSYNC_ERR_STATE, "%s: call it before the first gsync_reducer_commit", call);
    }
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        if (matches(&reducer->gradients[i], pattern)) {
            return GSYNC_OK;
        }
    }
    return gs_fail(GSYNC_ERR_UNKNOWN_GRADIENT, "%s: no gradient's name matches '%s'", call,
                   pattern != NULL ? pattern : "*");
}

/* ---- the rules of a reducer ---- */

static bool is_in_use(const gsync_reducer *reducer, uint32_t rule) {
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        if (reducer->gradients[i].rule == rule) {
            return true;
        }
    }
    return reducer->default_rule == rule;
}

gsync_status gs_reducer_enter_rule(gsync_reducer *reducer, const gs_wire_rule *rule, uint32_t *index) {
    gs_wire_rule *wires = reducer->pipeline.wires;
    if (rule->wire == GSYNC_WIRE_NATIVE) {
        *index = rule->sum == GSYNC_WIRE_SUM_FAST ? GS_PLAN_WIRE_FAST : 0;
        return GSYNC_OK;
    }
    uint32_t free_index = 0;
    for (uint32_t i = GS_PLAN_WIRES_MAX; --i >= GS_PLAN_NARROW_FIRST;) {
        if (gs_wire_rule_is_same(&wires[i], rule)) {
            *index = i;
            return GSYNC_OK;
        }
        free_index = is_in_use(reducer, i) ? free_index : i;
    }
    if (free_index == 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gsync_reducer_set_wire: one reducer has at most %d different wires besides the native one",
                       GS_PLAN_WIRES_MAX - GS_PLAN_NARROW_FIRST);
    }
    wires[free_index] = *rule;
    *index = free_index;
    return GSYNC_OK;
}

static gsync_status set_wire(gsync_reducer *reducer, const char *pattern, gsync_wire wire,
                             const gsync_wire_options *options) {
    gs_wire_rule rule;
    uint32_t index;
    GS_TRY(check_pattern(reducer, pattern, "gsync_reducer_set_wire"));
    GS_TRY(gs_wire_rule_make(&rule, wire, options));
    if (rule.sum == GSYNC_WIRE_SUM_FAST && reducer->options.is_deterministic) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_reducer_set_wire: gsync_wire_options.sum is GSYNC_WIRE_SUM_FAST, and "
                                           "is_deterministic wants sums in the order of ranks: leave out one of them");
    }
    GS_TRY(gs_reducer_enter_rule(reducer, &rule, &index));
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        if (matches(&reducer->gradients[i], pattern)) {
            reducer->gradients[i].rule = index;
            reducer->gradients[i].has_rule = true;
        }
    }
    return GSYNC_OK;
}

gsync_status gsync_reducer_set_wire(gsync_reducer *reducer, const char *pattern, gsync_wire wire,
                                    const gsync_wire_options *options) {
    return gs_comm_report(gs_reducer_comm(reducer), set_wire(reducer, pattern, wire, options));
}

static gsync_status set_carries_momentum(gsync_reducer *reducer, const char *pattern) {
    GS_TRY(check_pattern(reducer, pattern, "gsync_reducer_set_carries_momentum"));
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        gs_gradient *gradient = &reducer->gradients[i];
        gradient->carries_momentum = gradient->carries_momentum || matches(gradient, pattern);
    }
    return GSYNC_OK;
}

gsync_status gsync_reducer_set_carries_momentum(gsync_reducer *reducer, const char *pattern) {
    return gs_comm_report(gs_reducer_comm(reducer), set_carries_momentum(reducer, pattern));
}

/* ---- at commit ---- */

/* Among ranks of one only: there is nobody to send anything to. */
static uint32_t rule_of(const gsync_reducer *reducer, size_t index) {
    const gs_gradient *gradient = &reducer->gradients[index];
    const uint32_t rule = gradient->has_rule ? gradient->rule : reducer->default_rule;
    const gs_wire_rule *wire = &reducer->pipeline.wires[rule];
    const gs_plan_gradient *shape = &reducer->shapes[index];
    if (reducer->comm->group->world_size == 1) {
        return 0;
    }
    if (gs_wire_rule_is_fast_as_it_is(wire, shape->dtype)) {
        return GS_PLAN_WIRE_FAST;
    }
    return gs_wire_rule_covers(wire, shape->count, shape->dtype) ? rule : 0;
}

static gsync_status allocate_residual(gs_residual *residual, size_t count) {
    for (int side = 0; side < 2 && residual->sides[1] == NULL; side++) {
        if (residual->sides[side] == NULL) {
            GS_TRY(gs_memory_new_aligned((void *)&residual->sides[side], count * sizeof(float), "error feedback"));
        }
    }
    return GSYNC_OK;
}

/* Of several hosts' ranks only the first ones encode. */
static gsync_status allocate_residuals(const gsync_reducer *reducer, size_t index, const gs_wire_rule *rule) {
    const gs_group *group = reducer->comm->group;
    gs_residual *residuals = reducer->gradients[index].residuals;
    const bool encodes = rule->codec == NULL || group->host_count == 1 || group->local_rank == 0;
    if (!rule->has_feedback || !encodes) {
        return GSYNC_OK;
    }
    const size_t count = gs_narrow_place_count(&reducer->shapes[index]);
    GS_TRY(allocate_residual(&residuals[GS_WIRE_CONTRIBUTION], count));
    return rule->codec != NULL ? allocate_residual(&residuals[GS_WIRE_RESULT], count) : GSYNC_OK;
}

/* From a commit that failed. */
static void forget_residuals(gs_gradient *gradient) {
    for (int stage = 0; stage < 2; stage++) {
        gs_residual *residual = &gradient->residuals[stage];
        gs_memory_free(residual->sides[0]);
        gs_memory_free(residual->sides[1]);
        *residual = (gs_residual){.valid = 0};
    }
}

gsync_status gs_reducer_apply_wires(gsync_reducer *reducer) {
    reducer->needs_findings = false;
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        const uint32_t index = rule_of(reducer, i);
        const gs_wire_rule *rule = &reducer->pipeline.wires[index];
        if (rule->has_feedback && reducer->gradients[i].carries_momentum) {
            return gs_fail(GSYNC_ERR_ARGUMENT,
                           "gradient '%s' carries momentum: error feedback would feed errors back twice: set "
                           "gsync_wire_options.feedback to GSYNC_FEEDBACK_OFF, or its wire to GSYNC_WIRE_NATIVE",
                           reducer->gradients[i].name);
        }
        if (!reducer->was_committed) {
            forget_residuals(&reducer->gradients[i]);
        }
        reducer->shapes[i].wire = index;
        reducer->shapes[i].block = gs_wire_rule_block(rule);
        reducer->needs_findings = reducer->needs_findings || index >= GS_PLAN_NARROW_FIRST;
    }
    return GSYNC_OK;
}

gsync_status gs_reducer_allocate_residuals(gsync_reducer *reducer) {
    for (size_t i = 0; i < reducer->gradient_count && reducer->stream == NULL; i++) {
        GS_TRY(allocate_residuals(reducer, i, &reducer->pipeline.wires[reducer->shapes[i].wire]));
    }
    return GSYNC_OK;
}

void gs_reducer_fold(gsync_reducer *reducer) {
    if (reducer->stream != NULL) {
        reducer->stream_ops->fold(reducer->stream);
    } else {
        gs_narrow_fold(&reducer->pipeline);
    }
}

void gs_reducer_free_residuals(gsync_reducer *reducer) {
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        forget_residuals(&reducer->gradients[i]);
    }
}
