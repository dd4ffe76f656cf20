/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MPI_LEVEL_SHIM_H
#define MPI_LEVEL_SHIM_H

/*
 * Stands between the library and MPI. A program that includes this defines some of MPI's functions itself and passes
 * them on through MPI's profiling interface, so that MPI can be made to offer less than it does and calls can be
 * watched. To be included by one source of a program.
 */

#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

typedef struct mpi_level_shim {
    int level;            /* what MPI_Query_thread says; below 0: the truth */
    pthread_t main;       /* the thread that may call MPI */
    _Atomic int calls;    /* messages begun or looked after, by any thread */
    _Atomic int strays;   /* of those, the ones by another thread than main */
    _Atomic int inside;   /* calls that have not returned */
    _Atomic int overlaps; /* calls that began while another had not returned */
} mpi_level_shim;

static mpi_level_shim shim = {.level = -1};

/* Sends, receives and tests only: what a trainer's step makes, and nothing that the harness or a test does. */
static inline void shim_enter(void) {
    atomic_fetch_add(&shim.calls, 1);
    atomic_fetch_add(&shim.strays, !pthread_equal(pthread_self(), shim.main));
    atomic_fetch_add(&shim.overlaps, atomic_fetch_add(&shim.inside, 1) != 0);
    sched_yield(); /* whoever does not wait for this call to return begins his own now */
}

static inline int shim_leave(int code) {
    atomic_fetch_sub(&shim.inside, 1);
    return code;
}

static inline void shim_start(int level) {
    shim.level = level;
    shim.main = pthread_self();
    atomic_store(&shim.calls, 0);
    atomic_store(&shim.strays, 0);
    atomic_store(&shim.overlaps, 0);
}

int MPI_Query_thread(int *provided) {
    const int code = PMPI_Query_thread(provided);
    *provided = shim.level >= 0 ? shim.level : *provided;
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    const int code = PMPI_Init_thread(argc, argv, required, provided);
    *provided = shim.level >= 0 ? shim.level : *provided;
    return code;
}

int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    shim_enter();
    return shim_leave(PMPI_Isend(buffer, count, type, to, tag, comm, request));
}

int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
    shim_enter();
    return shim_leave(PMPI_Irecv(buffer, count, type, from, tag, comm, request));
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[]) {
    shim_enter();
    return shim_leave(PMPI_Testall(count, requests, flag, statuses));
}

#endif
