/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADSYNC_GRADSYNC_MPI_H
#define GRADSYNC_GRADSYNC_MPI_H

/**
 * A communicator from an MPI_Comm, for trainers that already use MPI. Include it after or instead of gradsync.h and
 * compile with MPI's flags (mpicc).
 */

#include <gradsync/gradsync.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Collective over mpi_comm. The communicator is duplicated, so the library's traffic never meets the trainer's;
 * mpi_comm stays the caller's. MPI must be initialised, at any thread level:
 *
 *  - MPI_THREAD_SINGLE: no thread is started; buckets make progress inside gsync_ready and gsync_finish.
 *  - MPI_THREAD_FUNNELED: a helper thread is used where all ranks share one host, since it then makes no MPI call.
 *    With several hosts it is as with SINGLE; gsync_ready may still come from any thread, but buckets then move only
 *    on the thread that made the communicator, which must be the one that initialised MPI.
 *  - MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE: a helper thread. With SERIALIZED and several hosts the trainer must
 *    not call MPI itself between gsync_begin and gsync_finish, nor make, split or destroy communicators there.
 *
 * gsync_comm_options.progress = GSYNC_PROGRESS_HELPER is refused where the level does not allow it. The library never
 * finalises an MPI that it did not initialise; MPI_Finalize may come before or after gsync_comm_destroy.
 * mpi_comm must be an intra-communicator.
 */
GSYNC_API gsync_status gsync_comm_from_mpi(gsync_comm **comm, MPI_Comm mpi_comm, const gsync_comm_options *options);

#ifdef __cplusplus
}
#endif

#endif
