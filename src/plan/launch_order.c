/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/launch_order.h"

#include "base/memory.h"

#include <assert.h>
#include <string.h>

gsync_status gs_launch_order_init(gs_launch_order *order, size_t bucket_capacity) {
    memset(order, 0, sizeof *order);
    const gsync_status status =
        gs_memory_new(&order->is_full, bucket_capacity, sizeof *order->is_full, "the launch order");
    if (status == GSYNC_OK) {
        order->bucket_capacity = bucket_capacity;
    }
    return status;
}

void gs_launch_order_clear(gs_launch_order *order) {
    gs_memory_free(order->is_full);
    memset(order, 0, sizeof *order);
}

void gs_launch_order_reset(gs_launch_order *order, size_t bucket_count) {
    assert(bucket_count <= order->bucket_capacity);
    order->bucket_count = bucket_count;
    order->next = 0;
    for (size_t i = 0; i < bucket_count; i++) {
        order->is_full[i] = false;
    }
}

size_t gs_launch_order_fill(gs_launch_order *order, size_t bucket_index) {
    assert(bucket_index < order->bucket_count);
    order->is_full[bucket_index] = true;
    const size_t before = order->next;
    while (order->next < order->bucket_count && order->is_full[order->next]) {
        order->next++;
    }
    return order->next - before;
}

size_t gs_launch_order_fill_all(gs_launch_order *order) {
    const size_t left = order->bucket_count - order->next;
    order->next = order->bucket_count;
    return left;
}
