/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_transfer.h"

#include <algorithm>
#include <cstring>

namespace simcuda {

namespace {

bool is_equal(const Signature &a, const Signature &b) {
    return a.call == b.call && a.type == b.type && a.op == b.op && a.root == b.root && a.count == b.count;
}

std::string describe(const Signature &signature) {
    return std::string(name_of(static_cast<Kind>(signature.call))) + " of " + std::to_string(signature.count) +
           " elements of type " + std::to_string(signature.type) + ", op " + std::to_string(signature.op) + ", root " +
           std::to_string(signature.root);
}

/* Real NCCL would hang or mix up the data. */
ncclResult_t mismatch(Comm &comm, const Transfer &transfer, const Signature &theirs) {
    const std::string text = "rank " + std::to_string(comm.rank) + " called " + describe(transfer.signature) +
                             ", but rank " + std::to_string(transfer.peer) + " called " + describe(theirs);
    report_add(SIMCUDA_MISMATCH, {name_of(static_cast<Kind>(theirs.call)), "rank " + std::to_string(transfer.peer)},
               {name_of(static_cast<Kind>(transfer.signature.call)), "rank " + std::to_string(comm.rank)}, text);
    comm.meeting->board().has_failed = ncclInvalidUsage;
    comm.meeting->tell_all();
    return comm.fail(ncclInvalidUsage, text);
}

bool send_piece(Comm &comm, Transfer &transfer) {
    Mailbox &box = comm.meeting->mailbox(comm.rank, transfer.peer);
    if (box.is_full != 0) {
        return false;
    }
    if (transfer.has_begun && transfer.moved == transfer.bytes) {
        transfer.is_done = true;
        return true;
    }
    const size_t bytes = std::min(piece_bytes, transfer.bytes - transfer.moved);
    box.signature = transfer.signature;
    box.bytes = static_cast<uint32_t>(bytes);
    if (bytes > 0) {
        memcpy(box.data, transfer.data + transfer.moved, bytes);
    }
    transfer.moved += bytes;
    transfer.has_begun = true;
    box.is_full = 1;
    comm.meeting->tell(transfer.peer);
    return true;
}

bool receive_piece(Comm &comm, Transfer &transfer, ncclResult_t *result) {
    Mailbox &box = comm.meeting->mailbox(transfer.peer, comm.rank);
    if (box.is_full == 0) {
        return false;
    }
    if (!is_equal(box.signature, transfer.signature) || box.bytes > transfer.bytes - transfer.moved) {
        *result = mismatch(comm, transfer, box.signature);
        return false;
    }
    if (box.bytes > 0) {
        memcpy(transfer.data + transfer.moved, box.data, box.bytes);
    }
    transfer.moved += box.bytes;
    transfer.is_done = transfer.moved == transfer.bytes;
    box.is_full = 0;
    comm.meeting->tell(transfer.peer);
    return true;
}

/* Whether an earlier message between the same two in the same direction has to go first. */
bool has_to_queue(const std::vector<Transfer> &transfers, size_t index) {
    for (size_t i = 0; i < index; i++) {
        if (!transfers[i].is_done && transfers[i].peer == transfers[index].peer &&
            transfers[i].is_send == transfers[index].is_send) {
            return true;
        }
    }
    return false;
}

/* A message to itself needs no mailbox, but a receive that meets it. */
ncclResult_t run_to_self(Comm &comm, std::vector<Transfer> &transfers) {
    for (Transfer &send : transfers) {
        if (send.peer != comm.rank || !send.is_send) {
            continue;
        }
        const auto meets = [&](const Transfer &other) {
            return other.peer == comm.rank && !other.is_send && !other.is_done;
        };
        const auto receive = std::find_if(transfers.begin(), transfers.end(), meets);
        if (receive == transfers.end() || receive->bytes != send.bytes) {
            return comm.fail(ncclInvalidUsage, "a message to the rank itself that nobody receives");
        }
        memmove(receive->data, send.data, send.bytes);
        receive->is_done = send.is_done = true;
    }
    return ncclSuccess;
}

} // namespace

void wait_in_operation(Comm &comm, uint32_t seen, CUstream_st &stream) {
    operation_lets_go(stream);
    comm.meeting->wait_for_news(seen);
}

ncclResult_t run_transfers(Comm &comm, std::vector<Transfer> transfers, CUstream_st &stream) {
    ncclResult_t result = run_to_self(comm, transfers);
    while (result == ncclSuccess) {
        if (comm.has_to_end()) {
            return ncclRemoteError;
        }
        const uint32_t seen = comm.meeting->news();
        bool has_moved = false;
        bool are_done = true;
        for (size_t i = 0; i < transfers.size() && result == ncclSuccess; i++) {
            Transfer &transfer = transfers[i];
            if (!transfer.is_done && !has_to_queue(transfers, i)) {
                has_moved |= transfer.is_send ? send_piece(comm, transfer) : receive_piece(comm, transfer, &result);
            }
            are_done &= transfer.is_done;
        }
        if (are_done) {
            return ncclSuccess;
        }
        if (!has_moved && result == ncclSuccess) {
            wait_in_operation(comm, seen, stream);
        }
    }
    return result;
}

} // namespace simcuda
