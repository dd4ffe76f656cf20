/* SPDX-License-Identifier: Apache-2.0 */
#include "mirror.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* The calls of a step. */

/* ---- begin ---- */

/* Those with elements first where several have the same address. */
static int compare_places(const void *left, const void *right) {
    const mirror_gradient *a = *(mirror_gradient *const *)left;
    const mirror_gradient *b = *(mirror_gradient *const *)right;
    if (a->host != b->host) {
        return (uintptr_t)a->host < (uintptr_t)b->host ? -1 : 1;
    }
    return (int)(a->row_bytes == 0) - (int)(b->row_bytes == 0);
}

static void sort_by_address(mirror *of) {
    free((void *)of->by_address);
    of->by_address = ranks_allocate((of->count + 1) * sizeof(mirror_gradient *));
    for (size_t i = 0; i < of->count; i++) {
        of->by_address[i] = &of->gradients[i];
        atomic_store(&of->gradients[i].marks, 0);
        atomic_store(&of->gradients[i].is_copied, false);
    }
    qsort((void *)of->by_address, of->count, sizeof(mirror_gradient *), compare_places);
}

static mirror_gradient *gradient_at(const mirror *of, const void *host) {
    size_t from = 0;
    size_t to = of->by_address != NULL ? of->count : 0;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if ((uintptr_t)of->by_address[middle]->host < (uintptr_t)host) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    const bool is_there = of->by_address != NULL && from < of->count && host != NULL;
    return is_there && of->by_address[from]->host == host ? of->by_address[from] : NULL;
}

gsync_status __real_gsync_begin(gsync_reducer *reducer, gsync_phase phase);
gsync_status __wrap_gsync_begin(gsync_reducer *reducer, gsync_phase phase);
gsync_status __wrap_gsync_begin(gsync_reducer *reducer, gsync_phase phase) {
    mirror *of = mirror_find(reducer);
    if (of != NULL && !of->is_in_step) {
        sort_by_address(of);
    }
    const gsync_status status = __real_gsync_begin(reducer, phase);
    if (status == GSYNC_OK && of != NULL) {
        of->phase = phase;
        of->is_in_step = true;
        of->micro_batches++;
    }
    return status;
}

/* ---- ready ---- */

static cudaStream_t producer_of(const mirror *of, const mirror_gradient *gradient) {
    return of->streams[((uint64_t)(gradient - of->gradients) + of->micro_batches) % MIRROR_STREAMS];
}

static bool counts_marks(const mirror *of, const mirror_gradient *gradient) {
    return of->is_in_step && gradient->is_trainable;
}

/* The body may write until the last of a shared weight's marks. What it writes later does not get to the device, as
 * another mark would make it. */
static bool copy_at_last_mark(const mirror *of, mirror_gradient *gradient) {
    const uint32_t mark = counts_marks(of, gradient) ? atomic_fetch_add(&gradient->marks, 1) + 1 : 0;
    if (mark == gradient->uses) {
        gradient->hash = of->checks_writes ? mirror_hash(gradient) : 0;
        mirror_copy_in(gradient, producer_of(of, gradient));
        if (of->checks_writes) {
            MIRROR_DO(cudaStreamSynchronize(producer_of(of, gradient))); /* else it would bring what is written late */
        }
        atomic_store(&gradient->is_copied, true);
    }
    /* One too many, from another thread, may be the one that the library counts. */
    while (mark > gradient->uses && !atomic_load(&gradient->is_copied)) {
        sched_yield();
    }
    return mark == gradient->uses;
}

gsync_status __real_gsync_ready(gsync_reducer *reducer, const void *grad);
gsync_status __wrap_gsync_ready(gsync_reducer *reducer, const void *grad);
gsync_status __wrap_gsync_ready(gsync_reducer *reducer, const void *grad) {
    const mirror *of = mirror_find(reducer);
    mirror_gradient *gradient = of != NULL && of->streams[0] != NULL ? gradient_at(of, grad) : NULL;
    if (gradient == NULL) {
        return __real_gsync_ready(reducer, grad);
    }
    const bool was_copied = copy_at_last_mark(of, gradient);
    const gsync_status status = gsync_ready_on(reducer, gradient->device, producer_of(of, gradient));
    if (status != GSYNC_OK && counts_marks(of, gradient)) {
        atomic_fetch_sub(&gradient->marks, 1); /* it was none: a weight was forgotten, or it was one too many */
    }
    if (status != GSYNC_OK && was_copied) {
        MIRROR_DO(cudaStreamSynchronize(producer_of(of, gradient))); /* it will be copied again */
    }
    return status;
}

/* This is where the host waits for producers, and marks without a stream. */
gsync_status __real_gsync_ready_list(gsync_reducer *reducer, const void *const *grads, size_t n);
gsync_status __wrap_gsync_ready_list(gsync_reducer *reducer, const void *const *grads, size_t n);
gsync_status __wrap_gsync_ready_list(gsync_reducer *reducer, const void *const *grads, size_t n) {
    const mirror *of = mirror_find(reducer);
    if (of == NULL || of->streams[0] == NULL || grads == NULL) {
        return __real_gsync_ready_list(reducer, grads, n);
    }
    const void **devices = ranks_allocate(n * sizeof *devices);
    for (size_t i = 0; i < n; i++) {
        mirror_gradient *gradient = gradient_at(of, grads[i]);
        devices[i] = gradient != NULL ? gradient->device : grads[i];
        if (gradient != NULL && copy_at_last_mark(of, gradient)) {
            MIRROR_DO(cudaStreamSynchronize(producer_of(of, gradient)));
        }
    }
    const gsync_status status = __real_gsync_ready_list(reducer, devices, n);
    free((void *)devices);
    return status;
}

/* ---- finish ---- */

static bool takes_part(const mirror_gradient *gradient) {
    return gradient->is_trainable && gradient->rows * gradient->row_bytes != 0;
}

static void copy_unmarked(mirror *of) {
    for (size_t i = 0; i < of->count; i++) {
        mirror_gradient *gradient = &of->gradients[i];
        if (takes_part(gradient) && atomic_load(&gradient->marks) < gradient->uses) {
            mirror_copy_in(gradient, of->streams[0]);
        }
    }
}

/* What the body writes late is written late on the device, where by now nothing reads it: that would be a race. */
static void copy_late_writes(const mirror *of) {
    for (size_t i = 0; of->checks_writes && i < of->count; i++) {
        const mirror_gradient *gradient = &of->gradients[i];
        if (atomic_load(&gradient->is_copied) && takes_part(gradient) && mirror_hash(gradient) != gradient->hash) {
            MIRROR_DO(cudaSetDevice(of->device));
            MIRROR_DO(cudaDeviceSynchronize());
            mirror_copy_in(gradient, of->streams[0]);
        }
    }
}

static void synchronise(const mirror *of) {
    for (int i = 0; i < MIRROR_STREAMS; i++) {
        MIRROR_DO(cudaStreamSynchronize(of->streams[i]));
    }
}

/*
 * How many buckets of the plan hold results. After disagreements, which are noticed when all is reduced, a GPU's
 * gradients hold numbers of no use (docs/streams_and_threads.md), where a host's are as they were: so those of the body
 * stay as they were, and what it claims about them then is not tested.
 */
static size_t buckets_with_results(const mirror *of, gsync_status status, const gsync_step_info *info) {
    if (of->phase != GSYNC_SYNC || status == GSYNC_ERR_INCOMPLETE || status == GSYNC_ERR_MISMATCH) {
        return 0;
    }
    return status == GSYNC_OK ? SIZE_MAX : info->buckets_reduced;
}

static gsync_status end_micro_batch(mirror *of, gsync_status status, const gsync_step_info *info) {
    if (status == GSYNC_ERR_ARGUMENT || status == GSYNC_ERR_STATE) {
        return status; /* it goes on */
    }
    const size_t buckets = buckets_with_results(of, status, info);
    for (size_t i = 0; buckets != 0 && i < of->count; i++) {
        const mirror_gradient *gradient = &of->gradients[i];
        if (takes_part(gradient) && (size_t)gsync_bucket_of(of->reducer, gradient->name) < buckets) {
            mirror_copy_out(gradient, of->streams[0]);
        }
    }
    synchronise(of);
    of->is_in_step = false;
    return status;
}

/* Every other micro-batch whose outcome nobody looks at. Ranks do the same: a body asks for it on all or on none. */
static bool finishes_on_stream(const mirror *of, const gsync_step_info *info) {
    return mirror_get_settings()->finishes_on_streams && info == NULL && !of->has_scaler && !of->needs_host &&
           of->micro_batches % 2 == 0;
}

gsync_status __real_gsync_finish(gsync_reducer *reducer, gsync_step_info *info);
gsync_status __wrap_gsync_finish(gsync_reducer *reducer, gsync_step_info *info);
gsync_status __wrap_gsync_finish(gsync_reducer *reducer, gsync_step_info *info) {
    mirror *of = mirror_find(reducer);
    if (of == NULL || !of->is_in_step || of->streams[0] == NULL) {
        return __real_gsync_finish(reducer, info);
    }
    copy_unmarked(of);
    copy_late_writes(of);
    gsync_step_info own = GSYNC_STEP_INFO_INIT;
    gsync_step_info *const told = info != NULL ? info : &own;
    if (finishes_on_stream(of, info)) {
        return end_micro_batch(of, gsync_finish_on(reducer, of->streams[0], told), told);
    }
    MIRROR_DO(cudaStreamSynchronize(of->streams[0]));
    return end_micro_batch(of, __real_gsync_finish(reducer, told), told);
}

static bool has_marks(const mirror *of) {
    bool has_any = false;
    for (size_t i = 0; i < of->count; i++) {
        has_any = has_any || atomic_load(&of->gradients[i].marks) != 0;
    }
    return has_any;
}

/* What earlier micro-batches left in the gradients is what this rank contributes. */
gsync_status __real_gsync_finish_empty(gsync_reducer *reducer, gsync_step_info *info);
gsync_status __wrap_gsync_finish_empty(gsync_reducer *reducer, gsync_step_info *info);
gsync_status __wrap_gsync_finish_empty(gsync_reducer *reducer, gsync_step_info *info) {
    mirror *of = mirror_find(reducer);
    if (of == NULL || of->streams[0] == NULL || (of->is_in_step && has_marks(of))) {
        return __real_gsync_finish_empty(reducer, info);
    }
    if (!of->is_in_step) {
        sort_by_address(of);
        of->phase = GSYNC_SYNC;
        of->micro_batches++;
    }
    gsync_step_info own = GSYNC_STEP_INFO_INIT;
    gsync_step_info *const told = info != NULL ? info : &own;
    copy_unmarked(of);
    MIRROR_DO(cudaStreamSynchronize(of->streams[0]));
    return end_micro_batch(of, __real_gsync_finish_empty(reducer, told), told);
}

/* ---- clipping ---- */

gsync_status __real_gsync_clip_grad_norm(gsync_reducer *reducer, double max_norm, double *norm);
gsync_status __wrap_gsync_clip_grad_norm(gsync_reducer *reducer, double max_norm, double *norm);
gsync_status __wrap_gsync_clip_grad_norm(gsync_reducer *reducer, double max_norm, double *norm) {
    mirror *of = mirror_find(reducer);
    const gsync_status status = __real_gsync_clip_grad_norm(reducer, max_norm, norm);
    if (status == GSYNC_ERR_UNSUPPORTED && strstr(gsync_last_error(), "on a GPU") != NULL) {
        ranks_refuse(gsync_last_error());
    }
    for (size_t i = 0; status == GSYNC_OK && of != NULL && i < of->count; i++) {
        if (takes_part(&of->gradients[i])) {
            mirror_copy_out(&of->gradients[i], of->streams[0]);
        }
    }
    if (status == GSYNC_OK && of != NULL) {
        MIRROR_DO(cudaStreamSynchronize(of->streams[0]));
    }
    return status;
}
