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

/**
 * gsync_ready for a gradient that work on `producer` makes final: the library waits, on its own stream, for what the
 * producer has queued so far. A bucket's gradients may come from several streams. Never waits on the host. With
 * gradients in host memory GSYNC_ERR_ARGUMENT.
 */
GSYNC_API gsync_status gsync_ready_on(gsync_reducer *reducer, const void *grad, cudaStream_t producer);

/**
 * Ends the micro-batch like gsync_finish, but lets the stream `consumer` wait for the results instead of the host. What
 * the caller queues on it afterwards sees them. Gradients that were not marked are taken to be final with what consumer
 * has queued so far. info tells what the host knows by then: times, norm and found_inf only with gsync_finish.
 */
GSYNC_API gsync_status gsync_finish_on(gsync_reducer *reducer, cudaStream_t consumer, gsync_step_info *info);

#ifdef __cplusplus
}
#endif

#endif
