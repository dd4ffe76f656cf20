/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_PLAN_LAUNCH_ORDER_H
#define GS_PLAN_LAUNCH_ORDER_H

/*
 * Buckets leave in plan order whatever order they fill in, so that all ranks launch the same sequence. The caller
 * holds the lock.
 */

#include <gradsync/gradsync.h>
#include <stdbool.h>

typedef struct gs_launch_order {
    size_t bucket_capacity;
    size_t bucket_count;
    size_t next;   /* the first bucket that has not been launched */
    bool *is_full; /* of those from next on; what was launched is not looked at again */
} gs_launch_order;

gsync_status gs_launch_order_init(gs_launch_order *order, size_t bucket_capacity);
void gs_launch_order_clear(gs_launch_order *order);

/* Before each micro-batch. bucket_count <= bucket_capacity. */
void gs_launch_order_reset(gs_launch_order *order, size_t bucket_count);

/*
 * Notes that a bucket is full (again: no effect). Returns how many buckets may go now; they are
 * order->next before the call, and the following ones. order->next moves past them.
 */
size_t gs_launch_order_fill(gs_launch_order *order, size_t bucket_index);

/* At the end of a step: all that is left may go. Returns how many, as gs_launch_order_fill does. */
size_t gs_launch_order_fill_all(gs_launch_order *order);

#endif
