/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_PENDING_H
#define NCCL_PENDING_H

#include <cstddef>

namespace simcuda {

/* A call on a non-blocking communicator enqueues somewhat later: when its state has been asked for often enough, or
 * when the thread that made it waits for the device. This is the latter. */
void nccl_enqueue_pending();

/* Reports memory that is given back while a communicator has it registered. */
void nccl_memory_destroyed(const void *start, size_t bytes, const char *name);

} // namespace simcuda

#endif
