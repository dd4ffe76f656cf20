/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OPENED_RANKS_H
#define OPENED_RANKS_H

/* Ranks of a group of threads, each with a simulated GPU: what a reducer has when it opens a communicator of NCCL. */

#include "nccl_ranks.h"

#include "api/comm.h"
#include "collective/internal_nccl.h"
#include "device/device_cuda.h"

typedef struct opened_rank {
    int rank;
    int ranks;
    gsync_comm *comm;
    gs_cuda *cuda;
    gs_nccl_wish wish;
    gs_nccl *nccl; /* not opened yet */
    void *stream;
    void *event;
} opened_rank;

typedef void opened_rank_function(opened_rank *self);

typedef struct opened_run {
    gsync_comm *comms[RANKS_MAX];
    opened_rank_function *function;
} opened_run;

static inline gsync_status open_nccl(opened_rank *self) {
    gs_group *group = self->comm->group;
    return gs_nccl_open(group, group->control, &self->wish, &self->nccl);
}

/* Until what the stream has is done, or the communicator has failed. */
static inline gsync_status wait_for_stream(opened_rank *self) {
    bool is_done = false;
    CHECK_STATUS(gs_cuda_record(self->cuda, self->event, self->stream), GSYNC_OK);
    while (!is_done) {
        gs_nccl_nap();
        CHECK_STATUS(gs_cuda_is_done(self->cuda, self->event, &is_done), GSYNC_OK);
        /* Afterwards: what NCCL has given up is done as well. */
        const gsync_status status = gs_nccl_check(self->nccl);
        if (status != GSYNC_OK) {
            return status;
        }
    }
    return GSYNC_OK;
}

static inline void opened_rank_main(int rank, int ranks, void *context) {
    opened_run *run = context;
    opened_rank self = {.rank = rank, .ranks = ranks, .comm = run->comms[rank]};
    simcuda_thread_rank(rank);
    CHECK_STATUS(gs_cuda_open(&self.cuda), GSYNC_OK);
    CHECK_STATUS(gs_cuda_stream_new(self.cuda, true, &self.stream), GSYNC_OK);
    CHECK_STATUS(gs_cuda_event_new(self.cuda, &self.event), GSYNC_OK);
    self.wish = (gs_nccl_wish){.bus_id = gs_cuda_bus_id(self.cuda)};
    run->function(&self);
    (void)gs_nccl_close(self.nccl);
    gs_cuda_event_free(self.cuda, self.event);
    gs_cuda_stream_free(self.cuda, self.stream);
    gs_cuda_close(self.cuda);
    gsync_comm_destroy(&run->comms[rank]);
}

static inline void run_opened_ranks(int ranks, const gsync_comm_options *options, opened_rank_function *function) {
    opened_run run = {.function = function};
    assert_int_equal(gsync_comm_threads(run.comms, ranks, options), GSYNC_OK);
    run_rank_threads(ranks, opened_rank_main, &run);
}

#endif
