/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BRING_YOUR_OWN_NCCL_MEET_H
#define BRING_YOUR_OWN_NCCL_MEET_H

/* How the ranks get NCCL's unique id. A trainer that owns an ncclComm_t has something like this already. */

#include <nccl.h>

#include <stdbool.h>

typedef struct meeting {
    int rank;
    int ranks;
    int local_rank; /* among those of this host */
    ncclUniqueId id;
    const char *left_file; /* by this rank; NULL: none */
    bool used_mpi;
} meeting;

/*
 * Where torchrun's variables are set, rank 0 leaves the id in a file that all ranks see; it must not exist before.
 * Otherwise by MPI, if the program was built with it; else this rank is alone. On failure says why.
 */
bool meet(meeting *m, const char *id_file);

/* When all ranks have joined: the file has done its work. One that was there before stays. */
void meet_clean_up(const meeting *m);

/* The last thing. */
void meet_end(const meeting *m);

#endif
