/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_PLAN_READY_LEDGER_H
#define GS_PLAN_READY_LEDGER_H

/*
 * Which gradients have been marked ready in this micro-batch, and when a bucket is full. gs_ready_ledger_mark may be
 * called by any number of threads at once; it takes no lock and touches one counter per gradient and per bucket.
 * Everything else is called between micro-batches by one thread.
 */

#include "plan/bucket_plan.h"

#include <stdatomic.h>

typedef enum gs_mark {
    GS_MARK_COUNTED,     /* ready, its bucket is not full yet (or it is in none: then always, without effect) */
    GS_MARK_MORE_USES,   /* a shared weight: further marks are expected */
    GS_MARK_BUCKET_FULL, /* ready, and it was the last of its bucket: exactly one thread gets this per bucket */
    GS_MARK_TOO_OFTEN    /* more marks than declared; nothing was counted */
} gs_mark;

typedef struct gs_ready_ledger {
    size_t gradient_count;
    _Atomic uint32_t *marks;        /* per gradient, in this micro-batch */
    _Atomic uint32_t *pending;      /* per bucket: gradients that are not ready */
    _Atomic unsigned char *is_used; /* per gradient: marked at least once in this window */
    _Atomic uint32_t *order;        /* gradients in the order in which they became ready in this micro-batch */
    _Atomic uint32_t order_count;
} gs_ready_ledger;

gsync_status gs_ready_ledger_init(gs_ready_ledger *ledger, size_t gradient_count);
void gs_ready_ledger_clear(gs_ready_ledger *ledger);

/* Before each micro-batch, also the first. The plan may have changed. starts_window also forgets what was used. */
void gs_ready_ledger_reset(gs_ready_ledger *ledger, const gs_bucket_plan *plan, bool starts_window);

/*
 * The thread that gets GS_MARK_BUCKET_FULL sees everything that the threads which marked the bucket's other gradients
 * wrote before they did.
 */
gs_mark gs_ready_ledger_mark(gs_ready_ledger *ledger, const gs_bucket_plan *plan, const gs_plan_gradient *gradients,
                             uint32_t gradient_index);

/*
 * The same in two calls, for who has something to do with a gradient after its last mark and before its bucket can
 * become full: exactly one thread gets GS_MARK_COUNTED from the first, sees what the other markers of the gradient
 * wrote, and then makes the second.
 */
gs_mark gs_ready_ledger_count(gs_ready_ledger *ledger, const gs_bucket_plan *plan, const gs_plan_gradient *gradients,
                              uint32_t gradient_index);
gs_mark gs_ready_ledger_complete(gs_ready_ledger *ledger, const gs_bucket_plan *plan, uint32_t gradient_index);

/* True once all uses of the gradient were marked, and always for gradients that are in no bucket. */
bool gs_ready_ledger_is_ready(const gs_ready_ledger *ledger, const gs_bucket_plan *plan,
                              const gs_plan_gradient *gradients, uint32_t gradient_index);

#endif
