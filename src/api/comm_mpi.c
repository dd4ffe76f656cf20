/* SPDX-License-Identifier: Apache-2.0 */
#if GS_HAVE_MPI
#include "api/comm.h"
#include "collective/collective_mpi.h"

#include <gradsync/gradsync_mpi.h>

gsync_status gsync_comm_from_mpi(gsync_comm **comm, MPI_Comm mpi_comm, const gsync_comm_options *from) {
    gsync_comm_options options;
    if (comm == NULL) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_comm_from_mpi: comm is NULL");
    }
    GS_TRY(gs_comm_read_options(&options, from));
    GS_TRY(gs_mpi_check_library());
    if (!gs_mpi_is_running()) {
        return gs_fail(GSYNC_ERR_STATE, "gsync_comm_from_mpi: MPI is not initialised, or already finalised");
    }
    const gs_mpi_settings settings = {
        .timeout_ms = options.timeout_ms, .ranks_per_host = options.ranks_per_host, .logger = gs_comm_logger(&options)};
    gsync_comm *made = NULL;
    gs_group *group = NULL;
    const gsync_status status = gs_mpi_create(&group, &mpi_comm, gs_comm_allocate(&made), &settings);
    return gs_comm_give(comm, made, status, group, &options, "from an MPI_Comm");
}
#else
typedef int gs_no_mpi_in_this_build;
#endif
