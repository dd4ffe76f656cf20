/* SPDX-License-Identifier: Apache-2.0 */
#include "mirror.h"

#include <stdlib.h>
#include <string.h>

/* The calls that say which gradients there are. ld's --wrap gives the program __wrap_f for f, and the library's own
 * f as __real_f. */

/* ---- communicators ---- */

/* With ranks on one device the library has to be told; the options of a test do not know. */
static const gsync_comm_options *widen(const gsync_comm_options *given, gsync_comm_options *own) {
    const bool is_known = given == NULL || given->struct_size == sizeof *given;
    if (getenv("GSYNC_TEST_SHARED_DEVICE") == NULL || !is_known) {
        return given;
    }
    *own = given != NULL ? *given : (gsync_comm_options)GSYNC_COMM_OPTIONS_INIT;
    own->allows_shared_device = 1;
    return own;
}

gsync_status __real_gsync_comm_create(gsync_comm **comm, const gsync_comm_options *options);
gsync_status __wrap_gsync_comm_create(gsync_comm **comm, const gsync_comm_options *options);
gsync_status __wrap_gsync_comm_create(gsync_comm **comm, const gsync_comm_options *options) {
    gsync_comm_options own;
    return __real_gsync_comm_create(comm, widen(options, &own));
}

/* ---- reducers ---- */

gsync_status __real_gsync_reducer_create(gsync_reducer **reducer, gsync_comm *comm, const gsync_options *options);
gsync_status __wrap_gsync_reducer_create(gsync_reducer **reducer, gsync_comm *comm, const gsync_options *options);
gsync_status __wrap_gsync_reducer_create(gsync_reducer **reducer, gsync_comm *comm, const gsync_options *options) {
    gsync_options own = GSYNC_OPTIONS_INIT;
    const bool is_known = options == NULL || options->struct_size == sizeof *options;
    if (!is_known || (options != NULL && options->memory == GSYNC_MEMORY_HOST)) {
        return __real_gsync_reducer_create(reducer, comm, options);
    }
    own = options != NULL ? *options : own;
    own.memory = own.memory == GSYNC_MEMORY_AUTO ? GSYNC_MEMORY_DEVICE : own.memory;
    own.is_deterministic = own.is_deterministic || !mirror_get_settings()->is_native;
    const gsync_status status = __real_gsync_reducer_create(reducer, comm, &own);
    if (status == GSYNC_OK) {
        mirror *of = mirror_new(*reducer, comm);
        of->needs_host = own.is_strict != 0 || own.finds_unused != 0 || own.checks_finite != 0 ||
                         own.computes_norm != 0 || own.replica_check_interval != 0 || own.checks_writes != 0;
        of->checks_writes = own.checks_writes != 0;
    }
    return status;
}

void __real_gsync_reducer_destroy(gsync_reducer **reducer);
void __wrap_gsync_reducer_destroy(gsync_reducer **reducer);
void __wrap_gsync_reducer_destroy(gsync_reducer **reducer) {
    mirror_forget(reducer != NULL ? *reducer : NULL);
    __real_gsync_reducer_destroy(reducer);
}

/* ---- gradients ---- */

/* The twin's address, or what was given where the library is going to refuse it anyhow. */
static void *device_of(mirror *of, const void *grad, size_t rows, size_t columns, size_t pitch, gsync_dtype dtype) {
    const size_t most = (size_t)1 << 32;
    const size_t size = gsync_dtype_size(dtype);
    const bool is_sensible = size != 0 && rows < most && columns < most && pitch < most && pitch >= columns &&
                             (rows == 0 || pitch <= most / rows);
    if (grad == NULL || !is_sensible) {
        return (void *)(uintptr_t)grad;
    }
    const size_t elements = rows != 0 && columns != 0 ? (rows - 1) * pitch + columns : 0;
    return mirror_twin(of, grad, elements * size);
}

static void note_gradient(mirror *of, mirror_gradient gradient) {
    if (of->count == of->capacity) {
        of->capacity = of->capacity != 0 ? 2 * of->capacity : 16;
        mirror_gradient *grown = realloc(of->gradients, of->capacity * sizeof *grown);
        if (grown == NULL) {
            mirror_do(cudaErrorMemoryAllocation, "realloc");
        }
        of->gradients = grown;
    }
    of->gradients[of->count++] = gradient;
    mirror_own(of, &gradient);
}

gsync_status __real_gsync_reducer_add_matrix(gsync_reducer *reducer, const char *name, void *grad, size_t rows,
                                             size_t columns, size_t row_pitch, gsync_dtype dtype);
gsync_status __wrap_gsync_reducer_add_matrix(gsync_reducer *reducer, const char *name, void *grad, size_t rows,
                                             size_t columns, size_t row_pitch, gsync_dtype dtype);
gsync_status __wrap_gsync_reducer_add_matrix(gsync_reducer *reducer, const char *name, void *grad, size_t rows,
                                             size_t columns, size_t row_pitch, gsync_dtype dtype) {
    mirror *of = mirror_find(reducer);
    void *device = of != NULL ? device_of(of, grad, rows, columns, row_pitch, dtype) : grad;
    const gsync_status status = __real_gsync_reducer_add_matrix(reducer, name, device, rows, columns, row_pitch, dtype);
    if (status == GSYNC_OK && of != NULL) {
        const size_t size = gsync_dtype_size(dtype);
        note_gradient(of, (mirror_gradient){.name = strdup(name),
                                            .host = grad,
                                            .device = device,
                                            .rows = rows,
                                            .row_bytes = columns * size,
                                            .pitch_bytes = row_pitch * size,
                                            .is_view = grad == NULL,
                                            .is_trainable = true,
                                            .uses = 1});
    }
    return status;
}

gsync_status __real_gsync_reducer_add(gsync_reducer *reducer, const char *name, void *grad, size_t count,
                                      gsync_dtype dtype);
gsync_status __wrap_gsync_reducer_add(gsync_reducer *reducer, const char *name, void *grad, size_t count,
                                      gsync_dtype dtype);
gsync_status __wrap_gsync_reducer_add(gsync_reducer *reducer, const char *name, void *grad, size_t count,
                                      gsync_dtype dtype) {
    mirror *of = mirror_find(reducer);
    void *device = of != NULL ? device_of(of, grad, 1, count, count, dtype) : grad;
    const gsync_status status = __real_gsync_reducer_add(reducer, name, device, count, dtype);
    if (status == GSYNC_OK && of != NULL) {
        const size_t bytes = count * gsync_dtype_size(dtype);
        note_gradient(of, (mirror_gradient){.name = strdup(name),
                                            .host = grad,
                                            .device = device,
                                            .rows = 1,
                                            .row_bytes = bytes,
                                            .pitch_bytes = bytes,
                                            .is_view = grad == NULL,
                                            .is_trainable = true,
                                            .uses = 1});
    }
    return status;
}

gsync_status __real_gsync_reducer_set_uses(gsync_reducer *reducer, const char *name, uint32_t uses);
gsync_status __wrap_gsync_reducer_set_uses(gsync_reducer *reducer, const char *name, uint32_t uses);
gsync_status __wrap_gsync_reducer_set_uses(gsync_reducer *reducer, const char *name, uint32_t uses) {
    const gsync_status status = __real_gsync_reducer_set_uses(reducer, name, uses);
    mirror *of = mirror_find(reducer);
    mirror_gradient *gradient = of != NULL ? mirror_gradient_named(of, name) : NULL;
    if (status == GSYNC_OK && gradient != NULL) {
        gradient->uses = uses;
    }
    return status;
}

gsync_status __real_gsync_reducer_set_trainable(gsync_reducer *reducer, const char *name, int is_trainable);
gsync_status __wrap_gsync_reducer_set_trainable(gsync_reducer *reducer, const char *name, int is_trainable);
gsync_status __wrap_gsync_reducer_set_trainable(gsync_reducer *reducer, const char *name, int is_trainable) {
    const gsync_status status = __real_gsync_reducer_set_trainable(reducer, name, is_trainable);
    mirror *of = mirror_find(reducer);
    mirror_gradient *gradient = of != NULL ? mirror_gradient_named(of, name) : NULL;
    if (status == GSYNC_OK && gradient != NULL) {
        gradient->is_trainable = is_trainable != 0;
    }
    return status;
}

/* ---- commit, and what comes after it ---- */

static void open_streams(mirror *of) {
    for (int i = 0; i < MIRROR_STREAMS; i++) {
        MIRROR_DO(cudaStreamCreateWithFlags(&of->streams[i], cudaStreamNonBlocking));
    }
}

gsync_status __real_gsync_reducer_commit(gsync_reducer *reducer);
gsync_status __wrap_gsync_reducer_commit(gsync_reducer *reducer);
gsync_status __wrap_gsync_reducer_commit(gsync_reducer *reducer) {
    mirror *of = mirror_find(reducer);
    int current = 0;
    if (of == NULL) {
        return __real_gsync_reducer_commit(reducer);
    }
    MIRROR_DO(cudaGetDevice(&current));
    MIRROR_DO(cudaSetDevice(of->device)); /* a thread that the body started has the first */
    const gsync_status status = __real_gsync_reducer_commit(reducer);
    if (status == GSYNC_OK && of->streams[0] == NULL) {
        open_streams(of);
        mirror_find_views(of);
    }
    MIRROR_DO(cudaSetDevice(current));
    if (status == GSYNC_ERR_UNSUPPORTED && strstr(gsync_last_error(), "on a GPU") != NULL) {
        ranks_refuse(gsync_last_error());
    }
    return status;
}

void *__real_gsync_reducer_grad(const gsync_reducer *reducer, const char *name);
void *__wrap_gsync_reducer_grad(const gsync_reducer *reducer, const char *name);
void *__wrap_gsync_reducer_grad(const gsync_reducer *reducer, const char *name) {
    mirror *of = mirror_find(reducer);
    void *grad = __real_gsync_reducer_grad(reducer, name);
    const mirror_gradient *gradient = of != NULL && grad != NULL ? mirror_gradient_named(of, name) : NULL;
    if (gradient == NULL) {
        return grad;
    }
    return gradient->view_host != NULL ? gradient->view_host : gradient->host;
}

static void *twin_of_gradient(mirror *of, const mirror_gradient *gradient, void *grad) {
    const size_t bytes = gradient->rows != 0 ? (gradient->rows - 1) * gradient->pitch_bytes + gradient->row_bytes : 0;
    if (grad != NULL && grad == gradient->view_host) {
        return gradient->view_device;
    }
    return grad != NULL ? mirror_twin(of, grad, gradient->row_bytes != 0 ? bytes : 0) : NULL;
}

static void note_move(mirror *of, mirror_gradient *gradient, void *grad, void *device) {
    gradient->host = grad != NULL ? grad : gradient->view_host;
    gradient->device = grad != NULL ? device : gradient->view_device;
    mirror_own(of, gradient);
}

gsync_status __real_gsync_reducer_rebind(gsync_reducer *reducer, const char *name, void *grad);
gsync_status __wrap_gsync_reducer_rebind(gsync_reducer *reducer, const char *name, void *grad);
gsync_status __wrap_gsync_reducer_rebind(gsync_reducer *reducer, const char *name, void *grad) {
    mirror *of = mirror_find(reducer);
    mirror_gradient *gradient = of != NULL ? mirror_gradient_named(of, name) : NULL;
    void *device = gradient != NULL ? twin_of_gradient(of, gradient, grad) : grad;
    const gsync_status status = __real_gsync_reducer_rebind(reducer, name, device);
    if (status == GSYNC_OK && gradient != NULL) {
        note_move(of, gradient, grad, device);
    }
    return status;
}

gsync_status __real_gsync_reducer_rebind_list(gsync_reducer *reducer, void *const *grads, size_t n);
gsync_status __wrap_gsync_reducer_rebind_list(gsync_reducer *reducer, void *const *grads, size_t n);
gsync_status __wrap_gsync_reducer_rebind_list(gsync_reducer *reducer, void *const *grads, size_t n) {
    mirror *of = mirror_find(reducer);
    if (of == NULL || grads == NULL || n != of->count) {
        return __real_gsync_reducer_rebind_list(reducer, grads, n);
    }
    void **devices = ranks_allocate(n * sizeof *devices);
    for (size_t i = 0; i < n; i++) {
        devices[i] = twin_of_gradient(of, &of->gradients[i], grads[i]);
    }
    const gsync_status status = __real_gsync_reducer_rebind_list(reducer, devices, n);
    for (size_t i = 0; status == GSYNC_OK && i < n; i++) {
        note_move(of, &of->gradients[i], grads[i], devices[i]);
    }
    free((void *)devices);
    return status;
}

gsync_status __real_gsync_reducer_set_scaler(gsync_reducer *reducer, gsync_scaler *scaler);
gsync_status __wrap_gsync_reducer_set_scaler(gsync_reducer *reducer, gsync_scaler *scaler);
gsync_status __wrap_gsync_reducer_set_scaler(gsync_reducer *reducer, gsync_scaler *scaler) {
    const gsync_status status = __real_gsync_reducer_set_scaler(reducer, scaler);
    mirror *of = mirror_find(reducer);
    if (status == GSYNC_OK && of != NULL) {
        of->has_scaler = scaler != NULL;
    }
    return status;
}
