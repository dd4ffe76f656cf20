/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADSYNC_GRADSYNC_CUDA_H
#define GRADSYNC_GRADSYNC_CUDA_H

/**
 * Gradients in the memory of a GPU.
 *
 * A reducer whose gradients were registered with device addresses reduces them over NCCL, on a stream of its own with
 * high priority, behind the kernels of backward. Everything else of gradsync.h is as it is for host memory. Any
 * communicator will do: of gsync_comm_create and gsync_comm_from_mpi (NCCL's id travels over MPI), of
 * gsync_comm_threads, or one made from an ncclComm_t that the trainer has already.
 *
 *     cudaSetDevice(...);                                  // before gsync_reducer_commit
 *     ...
 *     gsync_begin(r, GSYNC_SYNC);
 *     for (each layer, backward) {
 *         backward_kernels<<<..., compute>>>(...);
 *         gsync_ready_on(r, grad, compute);                // what compute has queued so far makes grad final
 *     }
 *     gsync_finish_on(r, compute, NULL);                   // compute waits, the host does not
 *     optimizer_kernels<<<..., compute>>>(...);
 *
 * The device that is current in gsync_reducer_commit is the reducer's; the current device of a calling thread is as it
 * was when a call returns. The default stream is never touched.
 */

#include <cuda_runtime_api.h>
#include <gradsync/gradsync.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Collective over the ranks of nccl, whose device has to be current. Ranks speak to each other over NCCL alone; MPI is
 * not needed. The library uses communicators of its own, which it splits off from nccl in this call (ncclCommSplit,
 * NCCL 2.18). nccl stays the caller's: nothing of it may be under way during the call; afterwards the library does not
 * touch it any more. It never aborts or destroys it.
 *
 * All ranks fail if one does. GSYNC_ERR_TIMEOUT: a rank did not call; nccl is then in the middle of a split, and can
 * only be aborted.
 */
GSYNC_API gsync_status gsync_comm_from_nccl(gsync_comm **comm, ncclComm_t nccl, const gsync_comm_options *options);

/*
 * Gradients of one reducer are all on one device, the current one, or GSYNC_ERR_ARGUMENT of gsync_reducer_commit names
 * those that are not; gsync_options.memory says where gradients without an address live. All wires are there.
 * gsync_ready means here that the host has synchronised with whoever wrote the gradient.
 *
 * Ranks that disagree, or forget a gradient with is_strict, are noticed when buckets are reduced already: after
 * GSYNC_ERR_INCOMPLETE and GSYNC_ERR_MISMATCH gradients hold numbers of no use. docs/streams_and_threads.md has the
 * whole picture.
 *
 * finds_unused holds with both ways to end a step: a gradient that no rank used keeps what it holds. Which ones these
 * are is decided on the device, by one more small exchange behind the buckets.
 *
 * checks_writes: a gradient is hashed on the stream that its mark names, behind what makes it final (after gsync_ready,
 * and with its last mark where it has several uses, on the library's stream), and again when the host is in
 * gsync_finish and all streams named in gsync_ready_on have done what they were given until then: they must still
 * exist. Only then are results written, on all ranks or on none. gsync_finish_on is GSYNC_ERR_STATE.
 *
 * replica_check_interval: results are hashed on the device, before a consumer may write gradients again. The ranks
 * compare the hashes in gsync_finish; after gsync_finish_on in the next gsync_begin, which waits for that step and for
 * the other ranks, and may return GSYNC_ERR_MISMATCH. The one after it begins as ever.
 *
 * gsync_wire_options.is_auto: buckets are timed on the device. After a step on trial that gsync_finish_on has ended
 * the next gsync_begin waits for it, and after the last of the six for the other ranks, since all choose by the same
 * times.
 */

/**
 * gsync_ready for a gradient that work on `producer` makes final: the library waits, on its own stream, for what the
 * producer has queued so far. A bucket's gradients may come from several streams. A gradient may be marked in one
 * micro-batch of a window only: the step waits for the producer that was named then. Never waits on the host; any
 * thread. With gradients in host memory GSYNC_ERR_ARGUMENT; while producer is being captured into a graph
 * GSYNC_ERR_UNSUPPORTED, with nothing recorded.
 */
GSYNC_API gsync_status gsync_ready_on(gsync_reducer *reducer, const void *grad, cudaStream_t producer);

/**
 * Ends the micro-batch like gsync_finish, but lets the stream `consumer` wait for the results instead of the host. What
 * the caller queues on it afterwards sees them, and may write gradients again; other streams have to wait for it.
 * Gradients that were not marked are taken to be final with what consumer has queued so far. All ranks end a step with
 * the same of the two calls.
 *
 * info tells what the host knows by then: times, norm, found_inf and gradients_unused only with gsync_finish; until the
 * next one gsync_is_used is -1 where finds_unused is set. What goes wrong later is returned by one of the next calls of
 * gsync_begin. GSYNC_ERR_STATE with a loss scaler, which has to know found_inf, and with checks_writes;
 * GSYNC_ERR_ARGUMENT and GSYNC_ERR_UNSUPPORTED as in gsync_ready_on: the micro-batch then goes on.
 *
 * When timeout_ms have passed since the call and the ranks have not reduced all, or one of them has failed, a thread of
 * the library ends the step: consumer goes on, with numbers of no use, and the next gsync_begin is
 * GSYNC_ERR_TIMEOUT or what was wrong. Ranks that share memory name who was late, as in gsync_finish; ranks that share
 * nothing but NCCL cannot know.
 */
GSYNC_API gsync_status gsync_finish_on(gsync_reducer *reducer, cudaStream_t consumer, gsync_step_info *info);

#ifdef __cplusplus
}
#endif

#endif
