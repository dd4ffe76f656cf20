/* SPDX-License-Identifier: Apache-2.0 */

/*
 * GS-68: who finalises MPI, and what may come after it. Each function is the main of a job of its own, chosen by name;
 * job.sh looks at how the job ends.
 */

#include "job.h"

#include <gradsync/gradsync_mpi.h>
#include <string.h>

static int is_finalized(void) {
    int flag = 0;
    MPI_Finalized(&flag);
    return flag;
}

static void initialise_mpi(void) {
    int level = 0;
    JOB_REQUIRE(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) == MPI_SUCCESS);
}

static gsync_comm *users_comm(uint32_t ranks_per_host) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.ranks_per_host = ranks_per_host;
    JOB_REQUIRE(gsync_comm_from_mpi(&comm, MPI_COMM_WORLD, &options) == GSYNC_OK);
    return comm;
}

static gsync_comm *librarys_comm(void) {
    gsync_comm *comm = NULL;
    JOB_REQUIRE(gsync_comm_create(&comm, NULL) == GSYNC_OK);
    return comm;
}

static int GS_68_the_user_owns_mpi(void) {
    initialise_mpi();
    job self = {.comm = users_comm(0)};
    job_open(&self);
    job_step(&self);
    job_close(&self);
    JOB_REQUIRE(!is_finalized());
    JOB_REQUIRE(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
    JOB_REQUIRE(MPI_Finalize() == MPI_SUCCESS);
    return 0;
}

/* gsync_comm_create finds MPI initialised, and so does not own it either. */
static int GS_68_the_user_owns_mpi_and_the_library_finds_it(void) {
    initialise_mpi();
    job self = {.comm = librarys_comm()};
    job_open(&self);
    job_step(&self);
    job_close(&self);
    JOB_REQUIRE(!is_finalized());
    JOB_REQUIRE(MPI_Finalize() == MPI_SUCCESS);
    return 0;
}

/* Registered before the library registers anything, so that it runs after everything of the library's. */
static void require_finalized_at_exit(void) {
    JOB_REQUIRE(is_finalized());
}

static int GS_68_the_library_owns_mpi(void) {
    JOB_REQUIRE(atexit(require_finalized_at_exit) == 0);
    job self = {.comm = librarys_comm()};
    job_open(&self);
    job_step(&self);
    job_close(&self);
    JOB_REQUIRE(!is_finalized()); /* not with the communicator: another one may follow */
    self.comm = librarys_comm();
    job_open(&self);
    job_step(&self);
    job_close(&self);
    return 0;
}

static int GS_68_the_library_owns_mpi_and_the_user_finalises_it(void) {
    job self = {.comm = librarys_comm()};
    job_open(&self);
    job_step(&self);
    job_close(&self);
    JOB_REQUIRE(MPI_Finalize() == MPI_SUCCESS);
    return 0;
}

static void check_user_finalises_first(uint32_t ranks_per_host) {
    job self = {.comm = users_comm(ranks_per_host)};
    gsync_comm *part = NULL;
    JOB_REQUIRE(gsync_comm_split(self.comm, 0, 0, &part) == GSYNC_OK);
    job_open(&self);
    job_step(&self);
    JOB_REQUIRE(MPI_Finalize() == MPI_SUCCESS);
    gsync_comm_destroy(&part);
    job_close(&self);
}

static int GS_68_the_user_finalises_first(void) {
    initialise_mpi();
    check_user_finalises_first(0);
    return 0;
}

static int GS_68_the_user_finalises_first_with_messages_between_hosts(void) {
    initialise_mpi();
    check_user_finalises_first(1);
    return 0;
}

/* A step after MPI_Finalize is a mistake with a status, and not a crash. */
static int GS_68_a_step_after_finalize_is_a_status(void) {
    initialise_mpi();
    job self = {.comm = users_comm(1)};
    job_open(&self);
    job_step(&self);
    JOB_REQUIRE(MPI_Finalize() == MPI_SUCCESS);
    JOB_REQUIRE(gsync_begin(self.reducer, GSYNC_SYNC) == GSYNC_OK);
    (void)gsync_ready(self.reducer, self.grad);
    JOB_REQUIRE(gsync_finish(self.reducer, NULL) == GSYNC_ERR_STATE);
    JOB_REQUIRE(strstr(gsync_last_error(), "MPI_Finalize") != NULL);
    job_close(&self);
    return 0;
}

static int GS_68_creating_after_finalize_is_a_status(void) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.transport = GSYNC_TRANSPORT_MPI;
    initialise_mpi();
    JOB_REQUIRE(MPI_Finalize() == MPI_SUCCESS);
    JOB_REQUIRE(gsync_comm_from_mpi(&comm, MPI_COMM_WORLD, NULL) == GSYNC_ERR_STATE);
    JOB_REQUIRE(gsync_comm_create(&comm, &options) == GSYNC_ERR_STATE);
    JOB_REQUIRE(comm == NULL);
    return 0;
}

/* Static, so that it is left behind and not lost. */
static job left_behind;

static int GS_68_nothing_is_destroyed(void) {
    JOB_REQUIRE(atexit(require_finalized_at_exit) == 0);
    left_behind.comm = librarys_comm();
    job_open(&left_behind);
    job_step(&left_behind);
    return 0;
}

static void destroy_at_exit(void) {
    job_close(&left_behind);
}

/* Handlers run in the reverse order of their registration: one of the two runs before MPI is finalised, one after. */
static int GS_68_destroyed_by_an_exit_handler_after_finalize(void) {
    JOB_REQUIRE(atexit(destroy_at_exit) == 0);
    left_behind.comm = librarys_comm();
    job_open(&left_behind);
    job_step(&left_behind);
    exit(0);
}

static int GS_68_destroyed_by_an_exit_handler_before_finalize(void) {
    left_behind.comm = librarys_comm();
    JOB_REQUIRE(atexit(destroy_at_exit) == 0);
    job_open(&left_behind);
    job_step(&left_behind);
    exit(0);
}

/* The last rank finds an error in the middle of a step, while the others wait for it for up to ten minutes. */
static int fail_on_one_rank(job *self) {
    job_open(self);
    job_step(self);
    if (gsync_rank(self->comm) == gsync_world_size(self->comm) - 1) {
        exit(JOB_ERROR_EXIT);
    }
    job_fill(self);
    JOB_REQUIRE(gsync_begin(self->reducer, GSYNC_SYNC) == GSYNC_OK);
    JOB_REQUIRE(gsync_finish(self->reducer, NULL) != GSYNC_OK);
    return JOB_ERROR_EXIT;
}

static int GS_68_one_rank_fails_where_the_user_owns_mpi(void) {
    initialise_mpi();
    job self = {.comm = users_comm(0)};
    return fail_on_one_rank(&self);
}

static int GS_68_one_rank_fails_where_the_library_owns_mpi(void) {
    job self = {.comm = librarys_comm()};
    return fail_on_one_rank(&self);
}

/* It says so before it goes: the others leave on their own, with the reason. */
static int GS_68_one_rank_aborts_and_all_leave(void) {
    job self = {.comm = librarys_comm()};
    job_open(&self);
    job_step(&self);
    if (gsync_rank(self.comm) == gsync_world_size(self.comm) - 1) {
        gsync_comm_abort(self.comm, "out of data");
    }
    job_fill(&self);
    JOB_REQUIRE(gsync_begin(self.reducer, GSYNC_SYNC) == GSYNC_OK);
    JOB_REQUIRE(gsync_finish(self.reducer, NULL) == GSYNC_ERR_ABORTED);
    JOB_REQUIRE(strstr(gsync_last_error(), "out of data") != NULL);
    job_close(&self);
    return JOB_ERROR_EXIT;
}

typedef struct named_job {
    const char *name;
    int (*run)(void);
} named_job;

#define JOB(function)                                                                                                  \
    { #function, function }

static const named_job jobs[] = {
    JOB(GS_68_the_user_owns_mpi),
    JOB(GS_68_the_user_owns_mpi_and_the_library_finds_it),
    JOB(GS_68_the_library_owns_mpi),
    JOB(GS_68_the_library_owns_mpi_and_the_user_finalises_it),
    JOB(GS_68_the_user_finalises_first),
    JOB(GS_68_the_user_finalises_first_with_messages_between_hosts),
    JOB(GS_68_a_step_after_finalize_is_a_status),
    JOB(GS_68_creating_after_finalize_is_a_status),
    JOB(GS_68_nothing_is_destroyed),
    JOB(GS_68_destroyed_by_an_exit_handler_after_finalize),
    JOB(GS_68_destroyed_by_an_exit_handler_before_finalize),
    JOB(GS_68_one_rank_fails_where_the_user_owns_mpi),
    JOB(GS_68_one_rank_fails_where_the_library_owns_mpi),
    JOB(GS_68_one_rank_aborts_and_all_leave),
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        if (strcmp(jobs[i].name, argv[1]) == 0) {
            return jobs[i].run();
        }
    }
    fprintf(stderr, "usage: %s JOB, one of\n", argv[0]);
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        fprintf(stderr, "  %s\n", jobs[i].name);
    }
    return 2;
}
