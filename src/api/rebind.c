/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include <assert.h>

/* Gradients that change their place between steps, and those that live in the library. */

void *gsync_reducer_grad(const gsync_reducer *reducer, const char *name) {
    if (reducer == NULL || !reducer->was_committed) {
        return NULL;
    }
    const uint32_t index = gs_reducer_find(reducer, name);
    if (index == GS_NO_INDEX) {
        return NULL;
    }
    const gs_gradient *gradient = &reducer->gradients[index];
    return gradient->has_view ? gradient->view : gradient->tensor.data;
}

/* Where `grad` means the gradient to be. */
static gsync_status resolve(const gsync_reducer *reducer, const gs_gradient *gradient, void *grad, void **place) {
    if (grad == NULL && !gradient->has_view && gs_tensor_count(&gradient->tensor) != 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gradient '%s' was registered with an address of its own: NULL is no new one for it",
                       gradient->name);
    }
    *place = grad != NULL ? grad : gradient->view;
    if ((uintptr_t)*place % gsync_dtype_size(gradient->tensor.dtype) != 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradient '%s': its address %p is not aligned to %s", gradient->name, grad,
                       gs_dtype_name(gradient->tensor.dtype));
    }
    return gs_reducer_check_home(reducer, (uint32_t)(gradient - reducer->gradients), *place);
}

/* The name of another gradient with elements at the same address; the map already holds the new addresses. */
static gsync_status check_doubles(const gsync_reducer *reducer) {
    for (uint32_t i = 0; i < reducer->gradient_count; i++) {
        const gs_tensor *tensor = &reducer->gradients[i].tensor;
        if (tensor->data == NULL || gs_tensor_count(tensor) == 0) {
            continue;
        }
        const uint32_t other = gs_index_map_find(&reducer->addresses, (uintptr_t)tensor->data);
        if (other != i) {
            return gs_fail(GSYNC_ERR_ARGUMENT, "gradients '%s' and '%s' would have the same address",
                           reducer->gradients[i].name, reducer->gradients[other].name);
        }
    }
    return GSYNC_OK;
}

static gsync_status rebind(gsync_reducer *reducer, const char *name, void *grad) {
    GS_TRY(gs_reducer_check_between_steps(reducer, "gsync_reducer_rebind"));
    assert(reducer != NULL);
    const uint32_t index = gs_reducer_find(reducer, name);
    if (index == GS_NO_INDEX) {
        return gs_fail(GSYNC_ERR_UNKNOWN_GRADIENT, "gsync_reducer_rebind: no gradient is called '%s'",
                       name != NULL ? name : "NULL");
    }
    void *place = NULL;
    gs_gradient *gradient = &reducer->gradients[index];
    GS_TRY(resolve(reducer, gradient, grad, &place));
    const uint32_t other = gs_index_map_find(&reducer->addresses, (uintptr_t)place);
    if (place != NULL && other != GS_NO_INDEX && other != index &&
        gs_tensor_count(&reducer->gradients[other].tensor) != 0 && gs_tensor_count(&gradient->tensor) != 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gradients '%s' and '%s' would have the same address", gradient->name,
                       reducer->gradients[other].name);
    }
    if (gs_index_map_find(&reducer->addresses, (uintptr_t)gradient->tensor.data) == index) {
        gs_index_map_remove(&reducer->addresses, (uintptr_t)gradient->tensor.data);
    }
    gradient->tensor.data = place;
    gs_reducer_note_moves(reducer);
    if (place != NULL && (other == GS_NO_INDEX || gs_tensor_count(&gradient->tensor) != 0)) {
        (void)gs_index_map_put(&reducer->addresses, (uintptr_t)place, index);
    }
    return GSYNC_OK;
}

gsync_status gsync_reducer_rebind(gsync_reducer *reducer, const char *name, void *grad) {
    return gs_comm_report(gs_reducer_comm(reducer), rebind(reducer, name, grad));
}

/* Exchanges the gradients' addresses with those in the list. */
static void swap_addresses(gsync_reducer *reducer, void **places) {
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        void *old = reducer->gradients[i].tensor.data;
        reducer->gradients[i].tensor.data = places[i];
        places[i] = old;
    }
    gs_reducer_index_addresses(reducer);
    gs_reducer_note_moves(reducer);
}

static gsync_status rebind_list(gsync_reducer *reducer, void *const *grads, size_t n, void **places) {
    for (size_t i = 0; i < n; i++) {
        GS_TRY(resolve(reducer, &reducer->gradients[i], grads[i], &places[i]));
    }
    swap_addresses(reducer, places);
    const gsync_status status = check_doubles(reducer);
    if (status != GSYNC_OK) {
        swap_addresses(reducer, places);
    }
    return status;
}

gsync_status gsync_reducer_rebind_list(gsync_reducer *reducer, void *const *grads, size_t n) {
    const char *call = "gsync_reducer_rebind_list";
    gsync_status status = gs_reducer_check_between_steps(reducer, call);
    if (status == GSYNC_OK && grads == NULL && n != 0) {
        status = gs_fail(GSYNC_ERR_ARGUMENT, "%s: grads is NULL", call);
    }
    if (status == GSYNC_OK && n != reducer->gradient_count) {
        status = gs_fail(GSYNC_ERR_ARGUMENT, "%s: %zu addresses for %zu gradients", call, n, reducer->gradient_count);
    }
    if (status == GSYNC_OK && n != 0) {
        if (reducer->places == NULL) {
            status = gs_fail(GSYNC_ERR_STATE, "%s: call gsync_reducer_commit first", call);
        } else {
            status = rebind_list(reducer, grads, n, reducer->places);
        }
    }
    return gs_comm_report(gs_reducer_comm(reducer), status);
}
