/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/ready_ledger.h"

#include "base/fail.h"
#include "base/memory.h"

#include <assert.h>
#include <string.h>

/* A hidden lock inside an atomic would live beside memory that is only zeroed, and would be far too slow here. */
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_CHAR_LOCK_FREE == 2, "the ledger needs lock-free atomics");

gsync_status gs_ready_ledger_init(gs_ready_ledger *ledger, size_t gradient_count) {
    memset(ledger, 0, sizeof *ledger);
    if (gradient_count >= GS_NO_BUCKET) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%zu gradients: a ledger holds fewer than %u", gradient_count, GS_NO_BUCKET);
    }
    const size_t n = gradient_count;
    gsync_status status;
    ledger->gradient_count = n;
    GS_TRY_OR(gs_memory_new_aligned(&ledger->marks, n * sizeof *ledger->marks, "the ready ledger"), failed);
    GS_TRY_OR(gs_memory_new_aligned(&ledger->pending, n * sizeof *ledger->pending, "the ready ledger"), failed);
    GS_TRY_OR(gs_memory_new_aligned(&ledger->is_used, n * sizeof *ledger->is_used, "the ready ledger"), failed);
    GS_TRY_OR(gs_memory_new_aligned(&ledger->order, n * sizeof *ledger->order, "the ready ledger"), failed);
    return GSYNC_OK;
failed:
    gs_ready_ledger_clear(ledger);
    return status;
}

void gs_ready_ledger_clear(gs_ready_ledger *ledger) {
    gs_memory_free((void *)ledger->order);
    gs_memory_free((void *)ledger->is_used);
    gs_memory_free((void *)ledger->pending);
    gs_memory_free((void *)ledger->marks);
    memset(ledger, 0, sizeof *ledger);
}

/* Relaxed stores: whoever lets other threads mark after this call also publishes it to them. */
void gs_ready_ledger_reset(gs_ready_ledger *ledger, const gs_bucket_plan *plan, bool starts_window) {
    assert(ledger->gradient_count == plan->gradient_count);
    for (size_t i = 0; i < ledger->gradient_count; i++) {
        atomic_store_explicit(&ledger->marks[i], 0, memory_order_relaxed);
    }
    for (size_t i = 0; i < plan->bucket_count; i++) {
        atomic_store_explicit(&ledger->pending[i], plan->buckets[i].gradient_count, memory_order_relaxed);
    }
    for (size_t i = 0; starts_window && i < ledger->gradient_count; i++) {
        atomic_store_explicit(&ledger->is_used[i], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&ledger->order_count, 0, memory_order_relaxed);
}

/*
 * Returns the marks of the gradient including this one; 0, without counting, if it has all of its uses already.
 * Compared before it is written, because adding and taking back would let a mark that is one too many hide a good one.
 * Acquire and release, because with several uses the last marker answers for what the earlier ones wrote.
 */
static uint32_t count_mark(_Atomic uint32_t *marks, uint32_t uses) {
    uint32_t seen = atomic_load_explicit(marks, memory_order_relaxed);
    do {
        if (seen >= uses) {
            return 0;
        }
    } while (
        !atomic_compare_exchange_weak_explicit(marks, &seen, seen + 1, memory_order_acq_rel, memory_order_relaxed));
    return seen + 1;
}

gs_mark gs_ready_ledger_count(gs_ready_ledger *ledger, const gs_bucket_plan *plan, const gs_plan_gradient *gradients,
                              uint32_t gradient_index) {
    assert(gradient_index < ledger->gradient_count);
    if (plan->bucket_of[gradient_index] == GS_NO_BUCKET) {
        return GS_MARK_COUNTED;
    }
    const uint32_t uses = gradients[gradient_index].uses;
    const uint32_t marks = count_mark(&ledger->marks[gradient_index], uses);
    if (marks == 0) {
        return GS_MARK_TOO_OFTEN;
    }
    atomic_store_explicit(&ledger->is_used[gradient_index], 1, memory_order_relaxed);
    return marks < uses ? GS_MARK_MORE_USES : GS_MARK_COUNTED;
}

gs_mark gs_ready_ledger_complete(gs_ready_ledger *ledger, const gs_bucket_plan *plan, uint32_t gradient_index) {
    const uint32_t bucket_index = plan->bucket_of[gradient_index];
    if (bucket_index == GS_NO_BUCKET) {
        return GS_MARK_COUNTED;
    }
    const uint32_t position = atomic_fetch_add_explicit(&ledger->order_count, 1, memory_order_relaxed);
    atomic_store_explicit(&ledger->order[position], gradient_index, memory_order_relaxed);
    /* Release hands this gradient to whoever completes the bucket; acquire takes over those of the other markers. */
    const uint32_t pending = atomic_fetch_sub_explicit(&ledger->pending[bucket_index], 1, memory_order_acq_rel);
    return pending == 1 ? GS_MARK_BUCKET_FULL : GS_MARK_COUNTED;
}

gs_mark gs_ready_ledger_mark(gs_ready_ledger *ledger, const gs_bucket_plan *plan, const gs_plan_gradient *gradients,
                             uint32_t gradient_index) {
    const gs_mark counted = gs_ready_ledger_count(ledger, plan, gradients, gradient_index);
    return counted == GS_MARK_COUNTED ? gs_ready_ledger_complete(ledger, plan, gradient_index) : counted;
}

bool gs_ready_ledger_is_ready(const gs_ready_ledger *ledger, const gs_bucket_plan *plan,
                              const gs_plan_gradient *gradients, uint32_t gradient_index) {
    assert(gradient_index < ledger->gradient_count);
    return plan->bucket_of[gradient_index] == GS_NO_BUCKET ||
           atomic_load_explicit(&ledger->marks[gradient_index], memory_order_acquire) >= gradients[gradient_index].uses;
}
