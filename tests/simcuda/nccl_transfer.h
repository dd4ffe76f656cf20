/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_TRANSFER_H
#define NCCL_TRANSFER_H

#include "nccl_comm.h"

namespace simcuda {

/* One message through mailboxes. */
struct Transfer {
    int peer;
    bool is_send;
    char *data;
    size_t bytes;
    Signature signature;

    size_t moved = 0;
    bool has_begun = false; /* even a message of no bytes is one piece */
    bool is_done = false;
};

/* All of them at the same time; those between the same two ranks in their order. Sending ends when the other has taken
 * it, as it may in NCCL, whose buffers nobody should count on. */
ncclResult_t run_transfers(Comm &comm, std::vector<Transfer> transfers, CUstream_st &stream);

/* Lets others run, and waits a moment or for news since `seen`. */
void wait_in_operation(Comm &comm, uint32_t seen, CUstream_st &stream);

const char *name_of(Kind kind);

} // namespace simcuda

#endif
