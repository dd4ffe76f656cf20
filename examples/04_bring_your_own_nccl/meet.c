/* SPDX-License-Identifier: Apache-2.0 */
#include "meet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if TRAINER_HAS_MPI
#include <mpi.h>
#endif

enum { PATH_ROOM = 4096, POLLS_MAX = 6000 /* a minute */ };

static bool make_id(meeting *m) {
    const ncclResult_t result = ncclGetUniqueId(&m->id);
    if (result != ncclSuccess) {
        fprintf(stderr, "ncclGetUniqueId: %s\n", ncclGetErrorString(result));
    }
    return result == ncclSuccess;
}

/* ---- A file ------------------------------------------------------------------------------------------------ */

/* Written elsewhere and then linked: nobody reads half of it, and what an earlier run has left is not taken for it. */
static bool leave_id(meeting *m, const char *id_file) {
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s.new", id_file);
    FILE *file = make_id(m) ? fopen(path, "wb") : NULL;
    const bool is_written = file != NULL && fwrite(&m->id, sizeof m->id, 1, file) == 1;
    if (file == NULL || fclose(file) != 0 || !is_written || link(path, id_file) != 0) {
        fprintf(stderr, "cannot leave NCCL's id in %s: %s\n", id_file, strerror(errno));
        unlink(path);
        return false;
    }
    unlink(path);
    m->left_file = id_file;
    return true;
}

static bool fetch_id(meeting *m, const char *id_file) {
    const struct timespec nap = {0, 10000000};
    for (int i = 0; i < POLLS_MAX; i++) {
        FILE *file = fopen(id_file, "rb");
        if (file != NULL) {
            const bool is_read = fread(&m->id, sizeof m->id, 1, file) == 1;
            fclose(file);
            if (!is_read) {
                fprintf(stderr, "rank %d: %s does not hold NCCL's id\n", m->rank, id_file);
            }
            return is_read;
        }
        nanosleep(&nap, NULL);
    }
    fprintf(stderr, "rank %d: rank 0 did not leave NCCL's id in %s\n", m->rank, id_file);
    return false;
}

static bool read_number(const char *name, int least, int *number) {
    const char *text = getenv(name);
    *number = text == NULL ? -1 : atoi(text);
    if (*number < least) {
        fprintf(stderr, "%s has to be set, as torchrun does it\n", name);
    }
    return *number >= least;
}

static bool meet_by_file(meeting *m, const char *id_file) {
    if (!read_number("WORLD_SIZE", 1, &m->ranks) || !read_number("RANK", 0, &m->rank) ||
        !read_number("LOCAL_RANK", 0, &m->local_rank)) {
        return false;
    }
    if (id_file == NULL) {
        fprintf(stderr, "which file shall rank 0 leave NCCL's id in? Name one that all ranks see\n");
        return false;
    }
    return m->rank == 0 ? leave_id(m, id_file) : fetch_id(m, id_file);
}

/* ---- MPI --------------------------------------------------------------------------------------------------- */

#if TRAINER_HAS_MPI

static bool meet_by_mpi(meeting *m) {
    MPI_Comm host;
    int has_id = 0;
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS) {
        return false;
    }
    m->used_mpi = true;
    MPI_Comm_rank(MPI_COMM_WORLD, &m->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m->ranks);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, m->rank, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &m->local_rank);
    MPI_Comm_free(&host);
    has_id = m->rank == 0 && make_id(m);
    MPI_Bcast(&has_id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Bcast(&m->id, sizeof m->id, MPI_BYTE, 0, MPI_COMM_WORLD);
    return has_id == 1;
}

void meet_end(const meeting *m) {
    if (m->used_mpi) {
        MPI_Finalize();
    }
}

#else

static bool meet_by_mpi(meeting *m) {
    m->ranks = 1;
    return make_id(m);
}

void meet_end(const meeting *m) {
    (void)m;
}

#endif

bool meet(meeting *m, const char *id_file) {
    memset(m, 0, sizeof *m);
    return getenv("WORLD_SIZE") != NULL ? meet_by_file(m, id_file) : meet_by_mpi(m);
}

void meet_clean_up(const meeting *m) {
    if (m->left_file != NULL) {
        unlink(m->left_file);
    }
}
