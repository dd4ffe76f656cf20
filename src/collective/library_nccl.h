/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_LIBRARY_NCCL_H
#define GS_COLLECTIVE_LIBRARY_NCCL_H

/*
 * The NCCL of this process, found at run time: the same binary works on a machine without one. Included by the files of
 * this room that speak to NCCL, and by no others.
 */

#include "base/fail.h"

#include <nccl.h>

typedef ncclResult_t gs_nccl_get_version(int *version);
typedef ncclResult_t gs_nccl_get_unique_id(ncclUniqueId *id);
typedef ncclResult_t gs_nccl_init_rank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
typedef ncclResult_t gs_nccl_split(ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config);
typedef ncclResult_t gs_nccl_on_comm(ncclComm_t comm);
typedef ncclResult_t gs_nccl_get_number(ncclComm_t comm, int *number);
typedef ncclResult_t gs_nccl_get_async_error(ncclComm_t comm, ncclResult_t *result);
typedef const char *gs_nccl_get_error_string(ncclResult_t result);
typedef const char *gs_nccl_get_last_error(ncclComm_t comm);
typedef ncclResult_t gs_nccl_group(void);
typedef ncclResult_t gs_nccl_op_create(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                       ncclScalarResidence_t residence, ncclComm_t comm);
typedef ncclResult_t gs_nccl_op_destroy(ncclRedOp_t op, ncclComm_t comm);
typedef ncclResult_t gs_nccl_reduce_all(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                        ncclComm_t comm, cudaStream_t stream);
typedef ncclResult_t gs_nccl_move_all(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                                      cudaStream_t stream);
typedef ncclResult_t gs_nccl_move_root(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                                       ncclComm_t comm, cudaStream_t stream);
typedef ncclResult_t gs_nccl_send(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                  cudaStream_t stream);
typedef ncclResult_t gs_nccl_recv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                  cudaStream_t stream);
typedef ncclResult_t gs_nccl_allocate(void **memory, size_t bytes);
typedef ncclResult_t gs_nccl_free(void *memory);
typedef ncclResult_t gs_nccl_add_buffer(ncclComm_t comm, void *start, size_t bytes, void **registration);
typedef ncclResult_t gs_nccl_drop_buffer(ncclComm_t comm, void *registration);

typedef struct gs_nccl_library {
    gs_nccl_get_version *get_version;
    gs_nccl_get_unique_id *get_unique_id;
    gs_nccl_init_rank *comm_init_rank_config;
    gs_nccl_on_comm *comm_finalize;
    gs_nccl_on_comm *comm_destroy;
    gs_nccl_on_comm *comm_abort;
    gs_nccl_get_number *comm_count;
    gs_nccl_get_number *comm_user_rank;
    gs_nccl_get_number *comm_cu_device;
    gs_nccl_get_async_error *comm_get_async_error;
    gs_nccl_get_error_string *get_error_string;
    gs_nccl_get_last_error *get_last_error;
    gs_nccl_group *group_start;
    gs_nccl_group *group_end;
    gs_nccl_op_create *red_op_create_pre_mul_sum;
    gs_nccl_op_destroy *red_op_destroy;
    gs_nccl_reduce_all *all_reduce;
    gs_nccl_move_all *all_gather;
    gs_nccl_move_root *broadcast;
    gs_nccl_send *send;
    gs_nccl_recv *recv;
    /* NULL where the library is too old for them. */
    gs_nccl_split *comm_split;
    gs_nccl_move_all *all_to_all;
    gs_nccl_allocate *mem_alloc;
    gs_nccl_free *mem_free;
    gs_nccl_add_buffer *comm_register;
    gs_nccl_drop_buffer *comm_deregister;
    int version;
    char description[512]; /* versions, and the file */
} gs_nccl_library;

/* GSYNC_ERR_UNSUPPORTED, with what was looked for and found, where there is none that can be used. Looks once. */
gsync_status gs_nccl_library_find(const gs_nccl_library **library);

/* Looks for NCCL in what has been opened as `handle`, of which `name` is what errors call it. */
gsync_status gs_nccl_library_load(gs_nccl_library *library, void *handle, const char *name);

/* 22809: "2.28.9" */
void gs_nccl_library_name_version(int version, char *text, size_t size);

#endif
