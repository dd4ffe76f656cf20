/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OWN_COMM_H
#define OWN_COMM_H

/* For cases whose subject is how a communicator comes about: one that the test itself makes, with any options. */

#include "ranks.h"

typedef struct own_comm_gift {
    gsync_status status;
    gsync_comm *comms[RANKS_WORLD_MAX];
} own_comm_gift;

/* Among threads one rank makes the handles of all; false when a rank left instead of coming here. */
static inline bool own_comm_among_threads(ranks_context *ctx, const gsync_comm_options *options, own_comm_gift *gift) {
    own_comm_gift all[RANKS_WORLD_MAX];
    gift->status = GSYNC_OK;
    if (ctx->rank == 0) {
        gift->status = gsync_comm_threads(gift->comms, ctx->world, options);
    }
    if (!ranks_exchange(ctx, gift, sizeof(*gift), all)) {
        return false;
    }
    *gift = all[0];
    return true;
}

/* Collective over the ranks of the test. The caller destroys *comm. */
static inline gsync_status own_comm_create(ranks_context *ctx, const gsync_comm_options *options, gsync_comm **comm) {
    if (ctx->transport != RANKS_THREADS) {
        return gsync_comm_create(comm, options);
    }
    own_comm_gift gift = {GSYNC_OK, {NULL}};
    if (!own_comm_among_threads(ctx, options, &gift)) {
        return GSYNC_ERR_INTERNAL;
    }
    if (gift.status == GSYNC_OK) {
        *comm = gift.comms[ctx->rank];
    }
    return gift.status;
}

#endif
