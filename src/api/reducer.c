/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include "base/memory.h"
#include "base/options.h"

#include <string.h>

/* ---- options ---- */

static gsync_status check_enum(const char *name, int value, int most) {
    if (value < 0 || value > most) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_options.%s is %d, which is not one of its values", name, value);
    }
    return GSYNC_OK;
}

static gsync_status check_options(const gsync_options *options) {
    GS_TRY(check_enum("strategy", (int)options->strategy, GSYNC_STRATEGY_SINGLE));
    GS_TRY(check_enum("order", (int)options->order, GSYNC_ORDER_REGISTERED));
    GS_TRY(check_enum("op", (int)options->op, GSYNC_WEIGHTED_MEAN));
    GS_TRY(check_enum("accumulation", (int)options->accumulation, GSYNC_CLIENT_OVERWRITES));
    GS_TRY(check_enum("weighting", (int)options->weighting, GSYNC_WEIGHT_OF_MEANS));
    GS_TRY(check_enum("divisor", (int)options->divisor, GSYNC_DIVIDE_BY_PARTICIPANTS));
    GS_TRY(check_enum("averages_window", options->averages_window, 1));
    GS_TRY(check_enum("is_strict", options->is_strict, 1));
    GS_TRY(check_enum("finds_unused", options->finds_unused, 1));
    GS_TRY(check_enum("checks_writes", options->checks_writes, 1));
    GS_TRY(check_enum("wire", (int)options->wire, GSYNC_WIRE_TOPK));
    GS_TRY(check_enum("checks_finite", options->checks_finite, 1));
    GS_TRY(check_enum("computes_norm", options->computes_norm, 1));
    GS_TRY(check_enum("memory", (int)options->memory, GSYNC_MEMORY_DEVICE));
    GS_TRY(check_enum("is_deterministic", options->is_deterministic, 1));
    if (options->weighting == GSYNC_WEIGHT_OF_MEANS && options->accumulation != GSYNC_CLIENT_OVERWRITES) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gsync_options.weighting: GSYNC_WEIGHT_OF_MEANS needs accumulation GSYNC_CLIENT_OVERWRITES: "
                       "the library can only weigh micro-batches that it adds up itself");
    }
    if (options->averages_window && options->op != GSYNC_MEAN) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_options.averages_window is about GSYNC_MEAN: sums are not divided, "
                                           "and weights already count each micro-batch");
    }
    if (options->is_strict && options->finds_unused) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_options: is_strict refuses unmarked gradients and finds_unused "
                                           "expects them: set one of the two");
    }
    return GSYNC_OK;
}

static gsync_status read_options(gsync_options *to, const gsync_options *from) {
    enum { MIB = 1024 * 1024 };
    GS_TRY(gs_options_copy(to, sizeof *to, from, "gsync_options"));
    GS_TRY(check_options(to));
    to->bucket_bytes_max = to->bucket_bytes_max == 0 ? (size_t)25 * MIB : to->bucket_bytes_max;
    if (to->bucket_bytes_first_max == 0) {
        to->bucket_bytes_first_max = to->bucket_bytes_max < MIB ? to->bucket_bytes_max : MIB;
    }
    return GSYNC_OK;
}

/* ---- life ---- */

/* Of the many ways to travel the first is entered, so there is room. */
static void set_default_wire(gsync_reducer *reducer) {
    gs_wire_rule rule;
    reducer->pipeline.wires[GS_PLAN_WIRE_FAST] = (gs_wire_rule){.wire = GSYNC_WIRE_NATIVE, .sum = GSYNC_WIRE_SUM_FAST};
    (void)gs_wire_rule_make(&rule, reducer->options.wire, NULL);
    (void)gs_reducer_enter_rule(reducer, &rule, &reducer->default_rule);
}

gsync_status gsync_reducer_create(gsync_reducer **out, gsync_comm *comm, const gsync_options *from) {
    GS_TRY(gs_comm_check(comm));
    if (out == NULL) {
        return gs_comm_report(comm, gs_fail(GSYNC_ERR_ARGUMENT, "gsync_reducer_create: reducer is NULL"));
    }
    gsync_options options;
    gsync_reducer *reducer = NULL;
    gsync_status status = read_options(&options, from);
    if (status == GSYNC_OK) {
        status = gs_memory_new(&reducer, 1, sizeof *reducer, "reducer");
    }
    if (status != GSYNC_OK) {
        return gs_comm_report(comm, status);
    }
    reducer->comm = comm;
    reducer->options = options;
    reducer->info.struct_size = sizeof reducer->info;
    set_default_wire(reducer);
    pthread_mutex_init(&reducer->launch_lock, NULL);
    gs_comm_hold(comm);
    *out = reducer;
    return GSYNC_OK;
}

void gsync_reducer_destroy(gsync_reducer **handle) {
    if (handle == NULL || *handle == NULL) {
        return;
    }
    gsync_reducer *reducer = *handle;
    *handle = NULL;
    gs_engine_remove(&reducer->comm->engine, &reducer->pipeline);
    gs_scaler_leave(reducer->scaler, reducer->has_open_window);
    gs_reducer_close_stream(reducer);
    gs_lane_close(reducer->pipeline.lane);
    gs_reducer_free_residuals(reducer);
    gs_sparse_clear(&reducer->pipeline.sparse);
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        gs_memory_free(reducer->gradients[i].name);
        gs_memory_free(reducer->gradients[i].accumulator);
    }
    gs_memory_free(reducer->gradients);
    gs_memory_free(reducer->shapes);
    gs_index_map_clear(&reducer->addresses);
    gs_index_map_clear(&reducer->names);
    gs_reducer_free_plan(reducer);
    pthread_mutex_destroy(&reducer->launch_lock);
    gs_comm_release(reducer->comm);
    gs_memory_free(reducer);
}

/* ---- checks ---- */

gsync_status gs_reducer_check(const gsync_reducer *reducer, gs_reducer_stage wanted, const char *call) {
    if (reducer == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: the reducer is NULL", call);
    }
    GS_TRY(gs_comm_check(reducer->comm));
    const gs_reducer_stage stage = gs_reducer_get_stage(reducer);
    if (stage == wanted) {
        return GSYNC_OK;
    }
    switch (stage) {
    case GS_REDUCER_OPEN:
        return gs_fail(GSYNC_ERR_STATE, "%s: call gsync_reducer_commit first", call);
    case GS_REDUCER_IDLE:
        return gs_fail(GSYNC_ERR_STATE,
                       wanted == GS_REDUCER_OPEN ? "%s: the set of gradients was committed and is frozen"
                                                 : "%s: call gsync_begin first",
                       call);
    case GS_REDUCER_ARMED:
        return gs_fail(GSYNC_ERR_STATE, "%s: a micro-batch is under way: call gsync_finish first", call);
    case GS_REDUCER_FAILED:
        return gs_fail(GSYNC_ERR_STATE, "%s: an earlier step failed for good: destroy the reducer and create it anew",
                       call);
    }
    return gs_fail(GSYNC_ERR_INTERNAL, "%s: unknown stage", call);
}

gsync_status gs_reducer_check_between_steps(const gsync_reducer *reducer, const char *call) {
    const bool is_open = reducer != NULL && gs_reducer_get_stage(reducer) == GS_REDUCER_OPEN;
    return gs_reducer_check(reducer, is_open ? GS_REDUCER_OPEN : GS_REDUCER_IDLE, call);
}

static uint64_t name_key(const char *name) {
    return gs_host_hash(name, strlen(name), 0);
}

uint32_t gs_reducer_find(const gsync_reducer *reducer, const char *name) {
    if (name == NULL) {
        return GS_NO_INDEX;
    }
    const uint32_t index = gs_index_map_find(&reducer->names, name_key(name));
    return index != GS_NO_INDEX && strcmp(reducer->gradients[index].name, name) == 0 ? index : GS_NO_INDEX;
}

static gsync_status find_named(const gsync_reducer *reducer, const char *name, const char *call, uint32_t *index) {
    if (name == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: name is NULL", call);
    }
    *index = gs_reducer_find(reducer, name);
    if (*index == GS_NO_INDEX) {
        return gs_fail(GSYNC_ERR_UNKNOWN_GRADIENT, "%s: no gradient is called '%s'", call, name);
    }
    return GSYNC_OK;
}

/* Empty gradients may lie anywhere: in a flat buffer each has the address of the slice after it. */
static gsync_status check_address(const gsync_reducer *reducer, const char *name, const gs_tensor *tensor) {
    const uintptr_t address = (uintptr_t)tensor->data;
    if (address % gsync_dtype_size(tensor->dtype) != 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradient '%s': its address %p is not aligned to %s", name, tensor->data,
                       gs_dtype_name(tensor->dtype));
    }
    const uint32_t other = address != 0 ? gs_index_map_find(&reducer->addresses, address) : GS_NO_INDEX;
    if (other != GS_NO_INDEX && gs_tensor_count(tensor) != 0 &&
        gs_tensor_count(&reducer->gradients[other].tensor) != 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gradient '%s' has the address of gradient '%s': register a shared weight once and declare its "
                       "marks with gsync_reducer_set_uses",
                       name, reducer->gradients[other].name);
    }
    return GSYNC_OK;
}

/* ---- adding ---- */

static gsync_status check_new(const gsync_reducer *reducer, const char *name, const gs_tensor *tensor) {
    if (name == NULL || name[0] == '\0') {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_reducer_add: every gradient needs a name");
    }
    if (!gs_dtype_is_floating(tensor->dtype)) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gradient '%s': dtype %d (%s) is not a floating-point type: gradients are float32, float64, "
                       "float16 or bfloat16",
                       name, (int)tensor->dtype, gs_dtype_name(tensor->dtype));
    }
    if (tensor->columns != 0 && tensor->rows > SIZE_MAX / 16 / tensor->columns) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradient '%s': its elements are more than memory can hold", name);
    }
    if (tensor->rows > 1 && (tensor->row_pitch < tensor->columns || tensor->row_pitch > SIZE_MAX / 16 / tensor->rows)) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradient '%s': row_pitch %zu does not fit %zu columns", name,
                       tensor->row_pitch, tensor->columns);
    }
    if (gs_index_map_find(&reducer->names, name_key(name)) != GS_NO_INDEX) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradient '%s' is registered already", name);
    }
    if (reducer->gradient_count >= UINT32_MAX / 4) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradient '%s': too many gradients", name);
    }
    return check_address(reducer, name, tensor);
}

/* Everything that can fail, before anything is entered. */
static gsync_status make_room(gsync_reducer *reducer, const char *name, char **copy) {
    const size_t count = reducer->gradient_count;
    GS_TRY(gs_memory_grow((void *)&reducer->gradients, &reducer->gradient_capacity, count, sizeof *reducer->gradients,
                          "gradients"));
    GS_TRY(gs_memory_grow((void *)&reducer->shapes, &reducer->shape_capacity, count, sizeof *reducer->shapes,
                          "gradients"));
    GS_TRY(gs_index_map_reserve(&reducer->addresses, count + 1));
    GS_TRY(gs_index_map_reserve(&reducer->names, count + 1));
    GS_TRY(gs_memory_new(copy, strlen(name) + 1, 1, "gradient name"));
    memcpy(*copy, name, strlen(name) + 1);
    return GSYNC_OK;
}

/* An empty gradient never hides one that has elements at the same address. */
static void index_address(gsync_reducer *reducer, uint32_t index) {
    const gs_tensor *tensor = &reducer->gradients[index].tensor;
    const uint64_t key = (uintptr_t)tensor->data;
    const bool is_taken = gs_index_map_find(&reducer->addresses, key) != GS_NO_INDEX;
    if (tensor->data != NULL && (gs_tensor_count(tensor) != 0 || !is_taken)) {
        (void)gs_index_map_put(&reducer->addresses, key, index); /* there is room */
    }
}

void gs_reducer_index_addresses(gsync_reducer *reducer) {
    gs_index_map_empty(&reducer->addresses);
    for (uint32_t i = 0; i < reducer->gradient_count; i++) {
        index_address(reducer, i);
    }
}

static gsync_status add(gsync_reducer *reducer, const char *name, const gs_tensor *tensor) {
    char *copy = NULL;
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_OPEN, "gsync_reducer_add"));
    if (reducer->was_committed) {
        return gs_fail(GSYNC_ERR_STATE, "gsync_reducer_add: the set of gradients was committed and is frozen");
    }
    GS_TRY(check_new(reducer, name, tensor));
    GS_TRY(make_room(reducer, name, &copy));
    const uint32_t index = (uint32_t)reducer->gradient_count;
    const bool has_view = tensor->data == NULL;
    reducer->gradients[index] = (gs_gradient){.name = copy, .tensor = *tensor, .has_view = has_view};
    reducer->shapes[index] =
        (gs_plan_gradient){.count = gs_tensor_count(tensor), .dtype = tensor->dtype, .uses = 1, .is_trainable = true};
    reducer->has_views = reducer->has_views || has_view;
    reducer->gradient_count++;
    (void)gs_index_map_put(&reducer->names, name_key(name), index);
    index_address(reducer, index);
    return GSYNC_OK;
}

gsync_status gsync_reducer_add(gsync_reducer *reducer, const char *name, void *grad, size_t count, gsync_dtype dtype) {
    const gs_tensor tensor = {.data = grad, .rows = 1, .columns = count, .row_pitch = count, .dtype = dtype};
    return gs_comm_report(gs_reducer_comm(reducer), add(reducer, name, &tensor));
}

gsync_status gsync_reducer_add_matrix(gsync_reducer *reducer, const char *name, void *grad, size_t rows, size_t columns,
                                      size_t row_pitch, gsync_dtype dtype) {
    const gs_tensor tensor = {.data = grad, .rows = rows, .columns = columns, .row_pitch = row_pitch, .dtype = dtype};
    if (reducer != NULL && grad == NULL && row_pitch != columns) {
        return gs_comm_report(reducer->comm, gs_fail(GSYNC_ERR_ARGUMENT,
                                                     "gradient '%s': in the library's memory rows are dense: "
                                                     "row_pitch must equal columns",
                                                     name != NULL ? name : ""));
    }
    return gs_comm_report(gs_reducer_comm(reducer), add(reducer, name, &tensor));
}

static gsync_status set_uses(gsync_reducer *reducer, const char *name, uint32_t uses) {
    uint32_t index;
    GS_TRY(gs_reducer_check(reducer, GS_REDUCER_OPEN, "gsync_reducer_set_uses"));
    GS_TRY(find_named(reducer, name, "gsync_reducer_set_uses", &index));
    if (uses == 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradient '%s': uses is 0: leave a gradient that is never used out", name);
    }
    reducer->shapes[index].uses = uses;
    reducer->has_shared_weights = reducer->has_shared_weights || uses > 1;
    return GSYNC_OK;
}

gsync_status gsync_reducer_set_uses(gsync_reducer *reducer, const char *name, uint32_t uses) {
    return gs_comm_report(gs_reducer_comm(reducer), set_uses(reducer, name, uses));
}

static gsync_status set_trainable(gsync_reducer *reducer, const char *name, int is_trainable) {
    uint32_t index;
    GS_TRY(gs_reducer_check_between_steps(reducer, "gsync_reducer_set_trainable"));
    GS_TRY(find_named(reducer, name, "gsync_reducer_set_trainable", &index));
    if (reducer->was_committed && reducer->has_views_anywhere) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED,
                       "gsync_reducer_set_trainable: gradients in the library's memory keep their addresses, so this "
                       "reducer's set cannot change after commit: create another");
    }
    if (reducer->shapes[index].is_trainable != (is_trainable != 0)) {
        reducer->shapes[index].is_trainable = is_trainable != 0;
        gs_reducer_set_stage(reducer, GS_REDUCER_OPEN);
    }
    return GSYNC_OK;
}

gsync_status gsync_reducer_set_trainable(gsync_reducer *reducer, const char *name, int is_trainable) {
    return gs_comm_report(gs_reducer_comm(reducer), set_trainable(reducer, name, is_trainable));
}
