/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/collective_nccl.h"

#include "collective/internal_nccl.h"

#include <math.h>
#include <string.h>

/* ---- all-reduce ---- */

static ncclDataType_t type_of(gsync_dtype dtype) {
    switch (dtype) {
    case GSYNC_FLOAT32:
        return ncclFloat32;
    case GSYNC_FLOAT64:
        return ncclFloat64;
    case GSYNC_FLOAT16:
        return ncclFloat16;
    case GSYNC_BFLOAT16:
        return ncclBfloat16;
    case GSYNC_INT32:
        return ncclInt32;
    case GSYNC_INT64:
        return ncclInt64;
    default:
        return ncclUint8;
    }
}

/* A factor as NCCL wants it: in the elements' own type, which a power of two fits without rounding. */
typedef union scalar {
    float f32;
    double f64;
    uint16_t bits;
} scalar;

static uint16_t half_bits(int exponent) {
    /* Below 2^-14 a power of two is one bit of the mantissa. */
    return exponent >= -14 ? (uint16_t)((exponent + 15) << 10) : (uint16_t)(1u << (exponent + 24));
}

static gsync_status make_scalar(scalar *to, double factor, gsync_dtype dtype) {
    int exponent = 0;
    const bool is_power = frexp(factor, &exponent) == 0.5;
    exponent -= 1;
    const int least = dtype == GSYNC_FLOAT16 ? -24 : -126;
    const int most = dtype == GSYNC_FLOAT16 ? 15 : 127;
    if (!is_power || exponent < least || exponent > most) {
        return gs_fail(GSYNC_ERR_INTERNAL, "an all-reduce cannot multiply by %g without rounding", factor);
    }
    switch (dtype) {
    case GSYNC_FLOAT32:
        to->f32 = (float)factor;
        return GSYNC_OK;
    case GSYNC_FLOAT64:
        to->f64 = factor;
        return GSYNC_OK;
    case GSYNC_FLOAT16:
        to->bits = half_bits(exponent);
        return GSYNC_OK;
    case GSYNC_BFLOAT16:
        to->bits = (uint16_t)((exponent + 127) << 7);
        return GSYNC_OK;
    default:
        return gs_fail(GSYNC_ERR_INTERNAL, "an all-reduce of integers cannot multiply");
    }
}

/* The one made longest ago goes: a trainer whose factor changes, as a loss scale does, would collect them. */
static gsync_status make_room(gs_nccl *nccl) {
    if (nccl->op_count < GS_NCCL_OPS_MAX) {
        return GSYNC_OK;
    }
    const ncclRedOp_t oldest = nccl->ops[0].op;
    nccl->op_count--;
    memmove(&nccl->ops[0], &nccl->ops[1], nccl->op_count * sizeof *nccl->ops);
    return gs_nccl_translate(nccl->library, nccl->comm, nccl->rank, nccl->library->red_op_destroy(oldest, nccl->comm),
                             "ncclRedOpDestroy");
}

static gsync_status find_op(gs_nccl *nccl, double factor, gsync_dtype dtype, ncclRedOp_t *op) {
    const ncclDataType_t type = type_of(dtype);
    scalar value;
    *op = ncclSum;
    if (factor == 1) {
        return GSYNC_OK;
    }
    for (size_t i = 0; i < nccl->op_count; i++) {
        if (nccl->ops[i].factor == factor && nccl->ops[i].type == type) {
            *op = nccl->ops[i].op;
            return GSYNC_OK;
        }
    }
    GS_TRY(make_scalar(&value, factor, dtype));
    GS_TRY(make_room(nccl));
    const ncclResult_t result =
        nccl->library->red_op_create_pre_mul_sum(op, &value, type, ncclScalarHostImmediate, nccl->comm);
    GS_TRY(gs_nccl_translate(nccl->library, nccl->comm, nccl->rank, result, "ncclRedOpCreatePreMulSum"));
    nccl->ops[nccl->op_count++] = (gs_nccl_op){.factor = factor, .type = type, .op = *op};
    return GSYNC_OK;
}

static gsync_status all_reduce(gs_nccl *nccl, void *data, size_t count, gsync_dtype dtype, double factor,
                               void *stream) {
    ncclRedOp_t op;
    GS_TRY(find_op(nccl, factor, dtype, &op));
    return gs_nccl_settle(nccl, nccl->library->all_reduce(data, data, count, type_of(dtype), op, nccl->comm, stream),
                          "ncclAllReduce");
}

gsync_status gs_nccl_all_reduce(gs_nccl *nccl, void *data, size_t count, gsync_dtype dtype, double factor,
                                void *stream) {
    GS_TRY(gs_nccl_enter(nccl));
    const gsync_status status = all_reduce(nccl, data, count, dtype, factor, stream);
    gs_nccl_leave(nccl);
    return status;
}

/* ---- bytes ---- */

gsync_status gs_nccl_all_gather(gs_nccl *nccl, void *data, size_t bytes, void *stream) {
    const unsigned char *own = (const unsigned char *)data + (size_t)nccl->rank * bytes;
    GS_TRY(gs_nccl_enter(nccl));
    const gsync_status status = gs_nccl_settle(
        nccl, nccl->library->all_gather(own, data, bytes, ncclUint8, nccl->comm, stream), "ncclAllGather");
    gs_nccl_leave(nccl);
    return status;
}

gsync_status gs_nccl_broadcast(gs_nccl *nccl, void *data, size_t bytes, int root, void *stream) {
    GS_TRY(gs_nccl_enter(nccl));
    const gsync_status status = gs_nccl_settle(
        nccl, nccl->library->broadcast(data, data, bytes, ncclUint8, root, nccl->comm, stream), "ncclBroadcast");
    gs_nccl_leave(nccl);
    return status;
}

/* ---- messages ---- */

static ncclResult_t post_message(const gs_nccl *nccl, const gs_nccl_message *message, void *stream) {
    const gs_nccl_library *library = nccl->library;
    return message->is_send
               ? library->send(message->data, message->bytes, ncclUint8, message->peer, nccl->comm, stream)
               : library->recv(message->data, message->bytes, ncclUint8, message->peer, nccl->comm, stream);
}

/* The group is ended also after a failure: the thread would stay in it. */
static ncclResult_t post_messages(const gs_nccl *nccl, const gs_nccl_message *messages, size_t count, void *stream) {
    ncclResult_t result = nccl->library->group_start();
    for (size_t i = 0; i < count && (result == ncclSuccess || result == ncclInProgress); i++) {
        result = post_message(nccl, &messages[i], stream);
    }
    const ncclResult_t end = nccl->library->group_end();
    return result == ncclSuccess || result == ncclInProgress ? end : result;
}

gsync_status gs_nccl_exchange(gs_nccl *nccl, const gs_nccl_message *messages, size_t count, void *stream) {
    GS_TRY(gs_nccl_enter(nccl));
    const ncclResult_t result = post_messages(nccl, messages, count, stream);
    const gsync_status status = result == ncclInProgress ? GSYNC_OK
                                                         : gs_nccl_translate(nccl->library, nccl->comm, nccl->rank,
                                                                             result, "ncclSend or ncclRecv");
    gs_nccl_leave(nccl);
    return status;
}

/* What NCCL before 2.28 has no call for. */
static ncclResult_t send_to_all(const gs_nccl *nccl, const void *from, void *to, size_t bytes, void *stream) {
    const gs_nccl_library *library = nccl->library;
    ncclResult_t result = library->group_start();
    for (int rank = 0; rank < nccl->world_size && (result == ncclSuccess || result == ncclInProgress); rank++) {
        const size_t offset = (size_t)rank * bytes;
        result = library->send((const unsigned char *)from + offset, bytes, ncclUint8, rank, nccl->comm, stream);
        if (result == ncclSuccess || result == ncclInProgress) {
            result = library->recv((unsigned char *)to + offset, bytes, ncclUint8, rank, nccl->comm, stream);
        }
    }
    const ncclResult_t end = library->group_end();
    return result == ncclSuccess || result == ncclInProgress ? end : result;
}

gsync_status gs_nccl_all_to_all(gs_nccl *nccl, const void *from, void *to, size_t bytes, void *stream) {
    const gs_nccl_library *library = nccl->library;
    GS_TRY(gs_nccl_enter(nccl));
    const ncclResult_t result = library->all_to_all != NULL
                                    ? library->all_to_all(from, to, bytes, ncclUint8, nccl->comm, stream)
                                    : send_to_all(nccl, from, to, bytes, stream);
    const gsync_status status =
        gs_nccl_settle(nccl, result, library->all_to_all != NULL ? "ncclAlltoAll" : "ncclSend or ncclRecv");
    gs_nccl_leave(nccl);
    return status;
}

/* ---- opening ---- */

gsync_status gs_nccl_open(gs_group *group, struct gs_lane *lane, const gs_nccl_wish *wish, gs_nccl **nccl) {
    const gs_nccl_part all = {.count = group->world_size, .own = group->rank};
    return gs_nccl_meet(lane, group->timeout_ms, &all, wish, nccl);
}
