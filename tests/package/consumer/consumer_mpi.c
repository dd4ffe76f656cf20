/* SPDX-License-Identifier: Apache-2.0 */
/* The same for a trainer that calls MPI itself. */
#include <gradsync/gradsync_mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    gsync_comm *comm = NULL;
    const gsync_status status = gsync_comm_from_mpi(&comm, MPI_COMM_WORLD, NULL);
    if (status != GSYNC_OK) {
        fprintf(stderr, "%s\n", gsync_last_error());
    }
    gsync_comm_destroy(&comm);
    MPI_Finalize();
    return status == GSYNC_OK ? 0 : 1;
}
