/* SPDX-License-Identifier: Apache-2.0 */
#include "api/comm.h"

#include "api/comm_nccl.h"
#include "api/torchrun.h"
#include "base/memory.h"
#include "base/options.h"
#include "collective/collective_threads.h"
#if GS_HAVE_MPI
#include "collective/collective_mpi.h"
#endif

#include <stdio.h>
#include <stdlib.h>

enum { TIMEOUT_DEFAULT_MS = 600000 };

/* ---- options ---- */

gsync_status gs_comm_read_options(gsync_comm_options *to, const gsync_comm_options *from) {
    GS_TRY(gs_options_copy(to, sizeof *to, from, "gsync_comm_options"));
    if ((int)to->transport < GSYNC_TRANSPORT_AUTO || (int)to->transport > GSYNC_TRANSPORT_NCCL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_comm_options.transport is %d, which is no transport",
                       (int)to->transport);
    }
    if ((int)to->progress < GSYNC_PROGRESS_AUTO || (int)to->progress > GSYNC_PROGRESS_CALLER) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_comm_options.progress is %d, which is no progress mode",
                       (int)to->progress);
    }
    if ((int)to->log_level < 0 || (int)to->log_level > GSYNC_LOG_TRACE) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_comm_options.log_level is %d, which is no level", (int)to->log_level);
    }
    to->timeout_ms = to->timeout_ms == 0 ? TIMEOUT_DEFAULT_MS : to->timeout_ms;
    to->log_level = (int)to->log_level == 0 ? GSYNC_LOG_WARN : to->log_level;
    return GSYNC_OK;
}

gs_logger gs_comm_logger(const gsync_comm_options *options) {
    return (gs_logger){.log = options->log, .user = options->log_user, .level = options->log_level};
}

/* ---- life ---- */

static gsync_status choose_progress(const gs_group *group, gsync_progress wish, bool *has_helper) {
    if (wish == GSYNC_PROGRESS_HELPER && !group->allows_helper) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gsync_comm_options.progress: a helper thread needs a higher MPI thread level than this (%s)",
                       group->helper_note);
    }
    *has_helper = wish != GSYNC_PROGRESS_CALLER && group->allows_helper;
    return GSYNC_OK;
}

static void describe(gsync_comm *comm, const char *reason) {
    const gs_group *group = comm->group;
    snprintf(comm->description, sizeof comm->description,
             "transport %s (%s), %d rank%s on %d host%s, progress by %s (%s)",
             group->world_size == 1 && group->ops->shares_address_space ? "single" : group->ops->name, reason,
             group->world_size, group->world_size == 1 ? "" : "s", group->machine.count,
             group->machine.count == 1 ? "" : "s", comm->engine.has_helper ? "a helper thread" : "the caller's thread",
             group->helper_note);
}

gsync_status gs_comm_allocate(gsync_comm **comm) {
    return gs_memory_new(comm, 1, sizeof **comm, "communicator");
}

static gsync_status start(gsync_comm *comm, gs_group *group, const gsync_comm_options *options, const char *reason) {
    bool has_helper = false;
    const gsync_status status = choose_progress(group, options->progress, &has_helper);
    if (status != GSYNC_OK) {
        gs_group_destroy(group);
        gs_memory_free(comm);
        return status;
    }
    comm->users = 1;
    comm->group = group;
    comm->options = *options;
    comm->logger = gs_comm_logger(options);
    pthread_mutex_init(&comm->calls, NULL);
    gs_engine_init(&comm->engine, group, has_helper);
    describe(comm, reason);
    if (!has_helper && options->progress == GSYNC_PROGRESS_AUTO) {
        GS_LOG(&comm->logger, GSYNC_LOG_WARN,
               "rank %d: %s allows no helper thread: buckets move inside gsync_ready and gsync_finish only",
               group->rank, group->helper_note);
    }
    GS_LOG(&comm->logger, GSYNC_LOG_INFO, "rank %d: %s", group->rank, comm->description);
    return GSYNC_OK;
}

gsync_status gs_comm_give(gsync_comm **out, gsync_comm *comm, gsync_status status, gs_group *group,
                          const gsync_comm_options *options, const char *reason) {
    if (status != GSYNC_OK) {
        gs_memory_free(comm);
        return status;
    }
    GS_TRY(start(comm, group, options, reason));
    *out = comm;
    return GSYNC_OK;
}

/* Takes over the group, also when it fails. */
static gsync_status wrap(gsync_comm **out, gs_group *group, const gsync_comm_options *options, const char *reason) {
    gsync_comm *comm = NULL;
    const gsync_status status = gs_comm_allocate(&comm);
    if (status != GSYNC_OK) {
        gs_group_destroy(group);
    }
    return gs_comm_give(out, comm, status, group, options, reason);
}

void gs_comm_hold(gsync_comm *comm) {
    atomic_fetch_add(&comm->users, 1);
}

void gs_comm_release(gsync_comm *comm) {
    if (atomic_fetch_sub(&comm->users, 1) != 1) {
        return;
    }
    gs_engine_clear(&comm->engine);
    gs_group_destroy(comm->group);
    pthread_mutex_destroy(&comm->calls);
    gs_memory_free(comm);
}

void gsync_comm_destroy(gsync_comm **handle) {
    if (handle == NULL || *handle == NULL) {
        return;
    }
    gsync_comm *comm = *handle;
    *handle = NULL;
    atomic_store(&comm->is_destroyed, 1);
    gs_engine_stop(&comm->engine);
    /* Another thread may be destroying a reducer. */
    gs_engine_lock(&comm->engine);
    for (gs_pipeline *pipeline = comm->engine.pipelines; pipeline != NULL; pipeline = pipeline->next_pipeline) {
        gs_lane_retire(pipeline->lane);
    }
    gs_engine_unlock(&comm->engine);
    gs_lane_retire(comm->group->control);
    gs_comm_release(comm);
}

void gsync_comm_abort(gsync_comm *comm, const char *reason) {
    if (comm != NULL) {
        gs_abort_box_set(&comm->group->shared->abort_box, comm->group->rank, GSYNC_ERR_ABORTED,
                         reason != NULL ? reason : "no reason given");
        gs_group_ring_all(comm->group);
    }
}

gsync_status gs_comm_check(const gsync_comm *comm) {
    if (comm == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "the communicator is NULL");
    }
    if (atomic_load(&comm->is_destroyed) != 0) {
        return gs_fail(GSYNC_ERR_STATE, "the communicator was destroyed");
    }
    return GSYNC_OK;
}

gsync_status gs_comm_report(const gsync_comm *comm, gsync_status status) {
    if (status != GSYNC_OK && comm != NULL) {
        GS_LOG(&comm->logger, GSYNC_LOG_ERROR, "rank %d: %s: %s", comm->group->rank, gsync_status_name(status),
               gsync_last_error());
    }
    return status;
}

/* ---- creation ---- */

static gsync_status create_single(gsync_comm **comm, const gsync_comm_options *options, const char *reason) {
    gs_group *group = NULL;
    const gs_logger logger = gs_comm_logger(options);
    GS_TRY(gs_threads_create(&group, 1, options->timeout_ms, &logger));
    group->helper_note = "a single rank";
    return wrap(comm, group, options, reason);
}

/* How many processes an MPI launcher says it started; 0: there is none. */
static int launched_processes(const char **variable) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
    static const char *const marks[] = {"PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *value = getenv(sizes[i]);
        if (value != NULL && strtol(value, NULL, 10) > 0) {
            *variable = sizes[i];
            return (int)strtol(value, NULL, 10);
        }
    }
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (getenv(marks[i]) != NULL) {
            *variable = marks[i];
            return 2; /* unknown, but not known to be one */
        }
    }
    *variable = "no launcher";
    return 0;
}

#if GS_HAVE_MPI
static gsync_status create_mpi(gsync_comm **comm, const gsync_comm_options *options, const char *reason) {
    const gs_mpi_settings settings = {.timeout_ms = options->timeout_ms,
                                      .ranks_per_host = options->ranks_per_host,
                                      .logger = gs_comm_logger(options)};
    gsync_comm *made = NULL;
    gs_group *group = NULL;
    GS_TRY(gs_mpi_ensure_initialized());
    const gsync_status status = gs_mpi_create_world(&group, gs_comm_allocate(&made), &settings);
    return gs_comm_give(comm, made, status, group, options, reason);
}

static bool is_mpi_running(void) {
    return gs_mpi_is_running();
}
#else
static gsync_status create_mpi(gsync_comm **comm, const gsync_comm_options *options, const char *reason) {
    (void)comm, (void)options;
    return gs_fail(GSYNC_ERR_UNSUPPORTED, "this build has no MPI (%s asks for it): build with -DGRADSYNC_MPI=ON",
                   reason);
}

static bool is_mpi_running(void) {
    return false;
}
#endif

/* Several processes that this build cannot bring together, or this machine. */
static gsync_status refuse_torchrun(int processes) {
    return gs_fail(
        GSYNC_ERR_UNSUPPORTED,
        "WORLD_SIZE is %d but no MPI launcher started this process, and there is no GPU for NCCL: use mpirun "
        "or srun, or ask for GSYNC_TRANSPORT_SINGLE",
        processes);
}

/* No MPI launcher has started this process. */
static gsync_status create_without_mpi(gsync_comm **comm, const gsync_comm_options *options, const char *reason) {
    const char *size = getenv("WORLD_SIZE");
    const long processes = size != NULL ? strtol(size, NULL, 10) : 1;
    if (processes <= 1) {
        return create_single(comm, options, reason);
    }
    return gs_torchrun_is_there() && gs_comm_sees_gpu() ? gs_comm_create_nccl(comm, options, "WORLD_SIZE")
                                                        : refuse_torchrun((int)processes);
}

static gsync_status create(gsync_comm **comm, const gsync_comm_options *from) {
    gsync_comm_options options;
    GS_TRY(gs_comm_read_options(&options, from));
    if (options.transport == GSYNC_TRANSPORT_SINGLE) {
        return create_single(comm, &options, "asked for");
    }
    if (options.transport == GSYNC_TRANSPORT_MPI) {
        return create_mpi(comm, &options, "asked for");
    }
    if (options.transport == GSYNC_TRANSPORT_NCCL) {
        return gs_comm_create_nccl(comm, &options, "asked for");
    }
    if (is_mpi_running()) {
        return create_mpi(comm, &options, "MPI is initialised");
    }
    const char *variable;
    const int processes = launched_processes(&variable);
    if (processes > 1) {
        return create_mpi(comm, &options, variable);
    }
    return create_without_mpi(comm, &options, variable);
}

gsync_status gsync_comm_create(gsync_comm **comm, const gsync_comm_options *options) {
    if (comm == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_comm_create: comm is NULL");
    }
    return create(comm, options);
}

static gsync_status wrap_threads(gsync_comm **comms, gs_group **groups, int world_size,
                                 const gsync_comm_options *options) {
    for (int i = 0; i < world_size; i++) {
        const gsync_status status = wrap(&comms[i], groups[i], options, "asked for");
        if (status != GSYNC_OK) {
            for (int made = 0; made < i; made++) {
                gsync_comm_destroy(&comms[made]);
            }
            for (int left = i + 1; left < world_size; left++) {
                gs_group_destroy(groups[left]);
            }
            return status;
        }
    }
    return GSYNC_OK;
}

gsync_status gsync_comm_threads(gsync_comm **comms, int world_size, const gsync_comm_options *from) {
    enum { THREADS_MAX = 4096 };
    if (comms == NULL || world_size < 1 || world_size > THREADS_MAX) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_comm_threads: comms is NULL or world_size %d is not in 1 .. %d",
                       world_size, THREADS_MAX);
    }
    gsync_comm_options options;
    GS_TRY(gs_comm_read_options(&options, from));
    const gs_logger logger = gs_comm_logger(&options);
    gs_group **groups = NULL;
    gsync_comm **made = NULL;
    gsync_status status = GSYNC_OK;
    GS_TRY_OR(gs_memory_new(&groups, (size_t)world_size, sizeof *groups, "groups"), done);
    GS_TRY_OR(gs_memory_new(&made, (size_t)world_size, sizeof *made, "communicators"), done);
    GS_TRY_OR(gs_threads_create(groups, world_size, options.timeout_ms, &logger), done);
    GS_TRY_OR(wrap_threads(made, groups, world_size, &options), done);
    for (int i = 0; i < world_size; i++) {
        comms[i] = made[i];
    }
done:
    gs_memory_free((void *)groups);
    gs_memory_free((void *)made);
    return status;
}

static gsync_status split(gsync_comm *comm, int color, int key, gsync_comm **part) {
    gsync_comm *made = NULL;
    gs_group *group = NULL;
    const gsync_status status = comm->group->ops->split(comm->group, gs_comm_allocate(&made), color, key, &group);
    if (status == GSYNC_OK && group == NULL) {
        gs_memory_free(made);
        *part = NULL;
        return GSYNC_OK;
    }
    return gs_comm_give(part, made, status, group, &comm->options, "split");
}

gsync_status gsync_comm_split(gsync_comm *comm, int color, int key, gsync_comm **part) {
    GS_TRY(gs_comm_check(comm));
    if (part == NULL) {
        return gs_comm_report(comm, gs_fail(GSYNC_ERR_ARGUMENT, "gsync_comm_split: part is NULL"));
    }
    pthread_mutex_lock(&comm->calls);
    const gsync_status status = split(comm, color, key, part);
    pthread_mutex_unlock(&comm->calls);
    return gs_comm_report(comm, status);
}
