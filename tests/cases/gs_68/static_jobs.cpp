// SPDX-License-Identifier: Apache-2.0

// GS-68 from C++: objects that are destroyed after main has ended, before or after MPI is finalised. Each function is
// the main of a job of its own, chosen by name; job.sh looks at how the job ends.

#include "job.h"

#include <gradsync/gradsync_mpi.h>

#include <cstring>

namespace {

struct Trainer {
    job self;

    Trainer() : self() {
    }
    Trainer(const Trainer &) = delete;
    Trainer &operator=(const Trainer &) = delete;
    ~Trainer() {
        job_close(&self);
    }

    void train() {
        job_open(&self);
        job_step(&self);
    }
};

struct Mpi {
    Mpi() {
        int level = 0;
        JOB_REQUIRE(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS);
    }
    Mpi(const Mpi &) = delete;
    Mpi &operator=(const Mpi &) = delete;
    ~Mpi() {
        JOB_REQUIRE(MPI_Finalize() == MPI_SUCCESS);
    }
};

// Made before main, and so destroyed after everything that main brought about.
Trainer global_trainer;

int GS_68_a_global_outlives_the_librarys_mpi() {
    JOB_REQUIRE(gsync_comm_create(&global_trainer.self.comm, nullptr) == GSYNC_OK);
    global_trainer.train();
    return 0;
}

int GS_68_a_static_goes_before_the_librarys_mpi() {
    gsync_comm *comm = nullptr;
    JOB_REQUIRE(gsync_comm_create(&comm, nullptr) == GSYNC_OK);
    static Trainer trainer;
    trainer.self.comm = comm;
    trainer.train();
    return 0;
}

int GS_68_a_global_outlives_the_users_mpi() {
    Mpi mpi;
    JOB_REQUIRE(gsync_comm_from_mpi(&global_trainer.self.comm, MPI_COMM_WORLD, nullptr) == GSYNC_OK);
    global_trainer.train();
    return 0;
}

int GS_68_a_local_outlives_the_users_mpi() {
    Trainer trainer;
    Mpi mpi;
    JOB_REQUIRE(gsync_comm_from_mpi(&trainer.self.comm, MPI_COMM_WORLD, nullptr) == GSYNC_OK);
    trainer.train();
    return 0;
}

// The usual order: the trainer goes before MPI.
int GS_68_a_local_goes_before_the_users_mpi() {
    Mpi mpi;
    Trainer trainer;
    JOB_REQUIRE(gsync_comm_from_mpi(&trainer.self.comm, MPI_COMM_WORLD, nullptr) == GSYNC_OK);
    trainer.train();
    return 0;
}

// One rank throws where nobody catches it on purpose, and main ends the process with a status of its own.
int GS_68_one_rank_throws_and_returns_an_error() {
    JOB_REQUIRE(gsync_comm_create(&global_trainer.self.comm, nullptr) == GSYNC_OK);
    job *self = &global_trainer.self;
    global_trainer.train();
    try {
        if (gsync_rank(self->comm) == 0) {
            throw 1;
        }
        JOB_REQUIRE(gsync_begin(self->reducer, GSYNC_SYNC) == GSYNC_OK);
        JOB_REQUIRE(gsync_finish(self->reducer, nullptr) != GSYNC_OK);
    } catch (int) {
        return JOB_ERROR_EXIT;
    }
    return JOB_ERROR_EXIT;
}

struct NamedJob {
    const char *name;
    int (*run)();
};

#define JOB(function)                                                                                                  \
    { #function, function }

const NamedJob jobs[] = {
    JOB(GS_68_a_global_outlives_the_librarys_mpi), JOB(GS_68_a_static_goes_before_the_librarys_mpi),
    JOB(GS_68_a_global_outlives_the_users_mpi),    JOB(GS_68_a_local_outlives_the_users_mpi),
    JOB(GS_68_a_local_goes_before_the_users_mpi),  JOB(GS_68_one_rank_throws_and_returns_an_error),
};

} // namespace

int main(int argc, char **argv) {
    for (const NamedJob &named : jobs) {
        if (argc == 2 && std::strcmp(named.name, argv[1]) == 0) {
            return named.run();
        }
    }
    fprintf(stderr, "usage: %s JOB, one of\n", argv[0]);
    for (const NamedJob &named : jobs) {
        fprintf(stderr, "  %s\n", named.name);
    }
    return 2;
}
