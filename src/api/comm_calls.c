/* SPDX-License-Identifier: Apache-2.0 */
#include "api/comm.h"
#include "api/comm_nccl.h"

#include <stdio.h>
#include <string.h>

/* The calls that a communicator offers beside its reducers. Large buffers travel in pieces. */

int gsync_rank(const gsync_comm *comm) {
    return comm != NULL ? comm->group->rank : -1;
}

int gsync_world_size(const gsync_comm *comm) {
    return comm != NULL ? comm->group->world_size : 0;
}

int gsync_local_rank(const gsync_comm *comm) {
    return comm != NULL ? comm->group->machine.rank : -1;
}

const char *gsync_comm_describe(const gsync_comm *comm) {
    return comm != NULL ? comm->description : "no communicator";
}

gsync_status gs_comm_run(gsync_comm *comm, const gs_lane_operation *operation) {
    /* Without a helper, this wait is a chance for buckets that are under way. */
    return gs_lane_run(comm->group->control, operation, gs_engine_idle_function(&comm->engine), &comm->engine);
}

/* ---- barrier, agreement ---- */

gsync_status gsync_barrier(gsync_comm *comm) {
    GS_TRY(gs_comm_check(comm));
    const gs_lane_operation operation = {.kind = GS_LANE_BARRIER, .topic = {.what = "barrier"}};
    pthread_mutex_lock(&comm->calls);
    const gsync_status status = gs_comm_run(comm, &operation);
    pthread_mutex_unlock(&comm->calls);
    return gs_comm_report(comm, status);
}

static gsync_status all_done(gsync_comm *comm, int mine, int *all) {
    const unsigned char flag = mine != 0;
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER, .topic = {.what = "all_done"}, .mail = &flag, .mail_bytes = 1};
    GS_TRY(gs_comm_run(comm, &operation));
    int result = 1;
    for (int rank = 0; rank < comm->group->world_size; rank++) {
        size_t bytes;
        const unsigned char *other = gs_lane_mail(comm->group->control, rank, &bytes);
        result = result && *other != 0;
    }
    *all = result;
    return GSYNC_OK;
}

gsync_status gsync_all_done(gsync_comm *comm, int mine_is_done, int *all) {
    GS_TRY(gs_comm_check(comm));
    if (all == NULL) {
        return gs_comm_report(comm, gs_fail(GSYNC_ERR_ARGUMENT, "gsync_all_done: all is NULL"));
    }
    pthread_mutex_lock(&comm->calls);
    const gsync_status status = all_done(comm, mine_is_done, all);
    pthread_mutex_unlock(&comm->calls);
    return gs_comm_report(comm, status);
}

/* ---- broadcast ---- */

static gsync_status check_buffer(const char *call, const void *buf, size_t count, gsync_dtype dtype) {
    const size_t size = gsync_dtype_size(dtype);
    if (size == 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: %d is no gsync_dtype", call, (int)dtype);
    }
    if (buf == NULL && count != 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: buf is NULL", call);
    }
    if (count > SIZE_MAX / size) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s: %zu elements are more than memory can hold", call, count);
    }
    return gs_comm_check_place(call, buf);
}

static gsync_status broadcast_piece(gsync_comm *comm, unsigned char *at, size_t bytes, const gs_lane_topic *topic,
                                    gsync_dtype dtype, int root) {
    const bool is_root = comm->group->rank == root;
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER, .topic = *topic, .mail = at, .mail_bytes = is_root ? bytes : 0, .dtype = dtype};
    GS_TRY(gs_comm_run(comm, &operation));
    if (!is_root && bytes != 0) {
        size_t received;
        const void *mail = gs_lane_mail(comm->group->control, root, &received);
        memcpy(at, mail, bytes);
    }
    return GSYNC_OK;
}

static gsync_status broadcast(gsync_comm *comm, unsigned char *buf, size_t bytes, gsync_dtype dtype, int root) {
    const size_t piece = gs_lane_mail_max(comm->group->control);
    gs_lane_topic topic = {.what = "broadcast", .total = bytes / gsync_dtype_size(dtype), .digest = (uint64_t)root};
    size_t done = 0;
    /* At least one piece, so that a rank that broadcasts nothing still meets the others. */
    do {
        const size_t length = bytes - done < piece ? bytes - done : piece;
        GS_TRY(broadcast_piece(comm, buf + done, length, &topic, dtype, root));
        done += length;
        topic.part++;
    } while (done < bytes);
    return GSYNC_OK;
}

gsync_status gsync_broadcast(gsync_comm *comm, void *buf, size_t count, gsync_dtype dtype, int root) {
    GS_TRY(gs_comm_check(comm));
    gsync_status status = check_buffer("gsync_broadcast", buf, count, dtype);
    if (status == GSYNC_OK && (root < 0 || root >= comm->group->world_size)) {
        status = gs_fail(GSYNC_ERR_ARGUMENT, "gsync_broadcast: root %d is not in 0 .. %d", root,
                         comm->group->world_size - 1);
    }
    if (status == GSYNC_OK) {
        pthread_mutex_lock(&comm->calls);
        status = broadcast(comm, buf, count * gsync_dtype_size(dtype), dtype, root);
        pthread_mutex_unlock(&comm->calls);
    }
    return gs_comm_report(comm, status);
}

/* ---- allreduce ---- */

static gsync_status check_op(gsync_dtype dtype, gsync_op op) {
    if (op != GSYNC_MEAN && op != GSYNC_SUM && op != GSYNC_MIN && op != GSYNC_MAX) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_allreduce: op %d is not MEAN, SUM, MIN or MAX", (int)op);
    }
    if (op == GSYNC_MEAN && !gs_dtype_is_floating(dtype)) {
        return gs_fail(GSYNC_ERR_UNSUPPORTED,
                       "gsync_allreduce: the mean of %s is not an integer in general: sum, and divide as you need",
                       gs_dtype_name(dtype));
    }
    return GSYNC_OK;
}

static gsync_status allreduce_piece(gsync_comm *comm, unsigned char *at, const gs_lane_operation *operation) {
    const size_t bytes = operation->count * gsync_dtype_size(operation->dtype);
    if (bytes != 0) {
        memcpy(operation->data, at, bytes);
    }
    GS_TRY(gs_comm_run(comm, operation));
    if (bytes != 0) {
        memcpy(at, operation->data, bytes);
    }
    return GSYNC_OK;
}

static gsync_status allreduce(gsync_comm *comm, unsigned char *buf, size_t count, gsync_dtype dtype, gsync_op op) {
    enum { PIECE_BYTES = 256 * 1024 };
    const size_t size = gsync_dtype_size(dtype);
    const size_t piece = PIECE_BYTES / sizeof(int64_t); /* so that the wide type fits whatever the dtype */
    gs_lane_operation operation = {
        .kind = GS_LANE_REDUCE,
        .topic = {.what = "allreduce", .total = count},
        .contributes = true,
        .data = gs_lane_slots(comm->group->control),
        .dtype = dtype,
        .op = op == GSYNC_MEAN ? GSYNC_SUM : op,
        .divide = op == GSYNC_MEAN ? GS_DIVIDE_WORLD : GS_DIVIDE_NOT,
    };
    size_t done = 0;
    do {
        operation.count = count - done < piece ? count - done : piece;
        GS_TRY(allreduce_piece(comm, buf + done * size, &operation));
        done += operation.count;
        operation.topic.part++;
    } while (done < count);
    return GSYNC_OK;
}

gsync_status gsync_allreduce(gsync_comm *comm, void *buf, size_t count, gsync_dtype dtype, gsync_op op) {
    GS_TRY(gs_comm_check(comm));
    gsync_status status = check_buffer("gsync_allreduce", buf, count, dtype);
    if (status == GSYNC_OK) {
        status = check_op(dtype, op);
    }
    if (status == GSYNC_OK) {
        pthread_mutex_lock(&comm->calls);
        status = allreduce(comm, buf, count, dtype, op);
        pthread_mutex_unlock(&comm->calls);
    }
    return gs_comm_report(comm, status);
}

/* ---- replicas ---- */

enum { HASHES_PER_PIECE = 1024 };

static gsync_status find_difference(const gsync_comm *comm, const char *const *names, size_t first, size_t count) {
    size_t index;
    int rank;
    if (!gs_lane_find_difference(comm->group->control, count, &index, &rank)) {
        return GSYNC_OK;
    }
    return gs_fail(GSYNC_ERR_MISMATCH, "buffer %zu%s%s%s of rank %d differs from rank 0's", first + index,
                   names != NULL ? " ('" : "", names != NULL ? names[first + index] : "", names != NULL ? "')" : "",
                   rank);
}

static gsync_status check_piece(gsync_comm *comm, const char *const *names, const void *const *bufs,
                                const size_t *bytes, size_t total, size_t first) {
    uint64_t hashes[HASHES_PER_PIECE];
    const size_t count = total - first < HASHES_PER_PIECE ? total - first : HASHES_PER_PIECE;
    for (size_t i = 0; i < count; i++) {
        hashes[i] = gs_host_hash(bufs[first + i], bytes[first + i], 0);
    }
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "check_replicas", .part = first, .total = total},
        .mail = hashes,
        .mail_bytes = count * sizeof *hashes,
    };
    GS_TRY(gs_comm_run(comm, &operation));
    return find_difference(comm, names, first, count);
}

static gsync_status check_replicas(gsync_comm *comm, const char *const *names, const void *const *bufs,
                                   const size_t *bytes, size_t n) {
    size_t first = 0;
    do {
        GS_TRY(check_piece(comm, names, bufs, bytes, n, first));
        first += HASHES_PER_PIECE;
    } while (first < n);
    return GSYNC_OK;
}

static gsync_status check_buffers(const char *const *names, const void *const *bufs, const size_t *bytes, size_t n) {
    if (n != 0 && (bufs == NULL || bytes == NULL)) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_check_replicas: bufs or bytes is NULL");
    }
    for (size_t i = 0; i < n; i++) {
        if ((bufs[i] == NULL && bytes[i] != 0) || (names != NULL && names[i] == NULL)) {
            return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_check_replicas: buffer or name %zu is NULL", i);
        }
        GS_TRY(gs_comm_check_place("gsync_check_replicas", bufs[i]));
    }
    return GSYNC_OK;
}

gsync_status gsync_check_replicas(gsync_comm *comm, const char *const *names, const void *const *bufs,
                                  const size_t *bytes, size_t n) {
    GS_TRY(gs_comm_check(comm));
    gsync_status status = check_buffers(names, bufs, bytes, n);
    if (status == GSYNC_OK) {
        pthread_mutex_lock(&comm->calls);
        status = check_replicas(comm, names, bufs, bytes, n);
        pthread_mutex_unlock(&comm->calls);
    }
    return gs_comm_report(comm, status);
}
