/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_68_JOB_H
#define GS_68_JOB_H

/* What the programs of GS-68 share: a trainer of one step, whose exit status is the subject. */

#include <gradsync/gradsync.h>
#include <stdio.h>
#include <stdlib.h>

enum { JOB_FAILED = 9, JOB_ERROR_EXIT = 3 };

/* Not through exit, which would run the very handlers that are being tested. */
static inline void job_require(int holds, const char *claim) {
    if (!holds) {
        fprintf(stderr, "does not hold: %s (%s)\n", claim, gsync_last_error());
        fflush(stderr);
        _Exit(JOB_FAILED);
    }
}
#define JOB_REQUIRE(condition) job_require((condition), #condition)

/* A gradient that tells the ranks apart, and its reducer. */
typedef struct job {
    gsync_comm *comm;
    gsync_reducer *reducer;
    float grad[5];
} job;

static inline void job_open(job *self) {
    JOB_REQUIRE(gsync_reducer_create(&self->reducer, self->comm, NULL) == GSYNC_OK);
    JOB_REQUIRE(gsync_reducer_add(self->reducer, "weight", self->grad, 5, GSYNC_FLOAT32) == GSYNC_OK);
    JOB_REQUIRE(gsync_reducer_commit(self->reducer) == GSYNC_OK);
}

static inline void job_fill(job *self) {
    for (int i = 0; i < 5; i++) {
        self->grad[i] = (float)((gsync_rank(self->comm) + 1) * (i + 1));
    }
}

/* The mean of 1 .. world, times i + 1. */
static inline void job_step(job *self) {
    job_fill(self);
    JOB_REQUIRE(gsync_begin(self->reducer, GSYNC_SYNC) == GSYNC_OK);
    JOB_REQUIRE(gsync_ready(self->reducer, self->grad) == GSYNC_OK);
    JOB_REQUIRE(gsync_finish(self->reducer, NULL) == GSYNC_OK);
    for (int i = 0; i < 5; i++) {
        const float mean = (float)(gsync_world_size(self->comm) + 1) / 2.0f;
        JOB_REQUIRE(self->grad[i] == mean * (float)(i + 1));
    }
}

static inline void job_close(job *self) {
    gsync_reducer_destroy(&self->reducer);
    gsync_comm_destroy(&self->comm);
    JOB_REQUIRE(self->reducer == NULL && self->comm == NULL);
}

#endif
