/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_peer.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

/* MPI belongs to the process, and so does this. */
static MPI_Comm comm = MPI_COMM_NULL;
static char description[256];
static char error_text[MPI_MAX_ERROR_STRING];

static const char *explain(int error) {
    if (error == MPI_SUCCESS) {
        return NULL;
    }
    int length = 0;
    MPI_Error_string(error, error_text, &length);
    return error_text;
}

static const char *level_name(int level) {
    switch (level) {
    case MPI_THREAD_SINGLE:
        return "single";
    case MPI_THREAD_FUNNELED:
        return "funneled";
    case MPI_THREAD_SERIALIZED:
        return "serialized";
    default:
        return "multiple";
    }
}

static void write_description(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    int level = MPI_THREAD_SINGLE;
    MPI_Get_library_version(version, &length);
    MPI_Query_thread(&level);
    snprintf(description, sizeof description, "MPI_Allreduce, MPI_IN_PLACE, MPI_SUM, %.*s, thread level %s",
             (int)strcspn(version, ",\n"), version, level_name(level));
}

static const char *open_peer(const perf_peer_ranks *ranks, void **state) {
    (void)ranks;
    (void)state;
    int is_initialized = 0;
    MPI_Initialized(&is_initialized);
    if (!is_initialized) {
        return "needs the processes of mpirun";
    }
    const char *problem = explain(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    if (problem == NULL) {
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        write_description();
    }
    return problem;
}

static void close_peer(void *state) {
    (void)state;
    if (comm != MPI_COMM_NULL) {
        MPI_Comm_free(&comm);
    }
}

static const char *describe(const void *state) {
    (void)state;
    return description;
}

/* MPI has no 16-bit numbers, and counts in int. */
static bool takes(const void *state, gsync_dtype dtype, size_t count) {
    (void)state;
    return (dtype == GSYNC_FLOAT32 || dtype == GSYNC_FLOAT64) && count <= INT_MAX;
}

static const char *sum(void *state, gsync_dtype dtype, size_t count, void *buffer) {
    (void)state;
    return explain(MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, dtype == GSYNC_FLOAT64 ? MPI_DOUBLE : MPI_FLOAT,
                                 MPI_SUM, comm));
}

const perf_peer perf_peer_mpi = {
    .name = "mpi", .open = open_peer, .close = close_peer, .describe = describe, .takes = takes, .sum = sum};
