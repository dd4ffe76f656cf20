/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_API_COMM_H
#define GS_API_COMM_H

#include "sync/engine.h"

/* A communicator. The caller's handle and every reducer are users of it; the last one frees it. */
struct gsync_comm {
    _Atomic int users;
    _Atomic int is_destroyed; /* by the caller; reducers left behind only answer */
    gs_group *group;
    gs_engine engine;
    gs_logger logger;
    pthread_mutex_t calls; /* the communicator's own calls share one lane */
    gsync_comm_options options;
    char description[256];
};

/* Checks options and fills in defaults. */
gsync_status gs_comm_read_options(gsync_comm_options *to, const gsync_comm_options *from);

/*
 * Two steps, so that a rank without memory can tell the others before they have a group: the outcome of the first is
 * `own` for what makes the group, whose own outcome is `status` for the second. That takes over comm and group, also
 * when it fails.
 */
gsync_status gs_comm_allocate(gsync_comm **comm);
gsync_status gs_comm_give(gsync_comm **out, gsync_comm *comm, gsync_status status, gs_group *group,
                          const gsync_comm_options *options, const char *reason);

void gs_comm_hold(gsync_comm *comm);
void gs_comm_release(gsync_comm *comm);

/* GSYNC_ERR_STATE after gsync_comm_destroy. */
gsync_status gs_comm_check(const gsync_comm *comm);

gs_logger gs_comm_logger(const gsync_comm_options *options);

/* One operation of the communicator's own lane. */
gsync_status gs_comm_run(gsync_comm *comm, const gs_lane_operation *operation);

/* Logs a failure once, where it leaves the library. */
gsync_status gs_comm_report(const gsync_comm *comm, gsync_status status);

#endif
