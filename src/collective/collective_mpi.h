/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_COLLECTIVE_COLLECTIVE_MPI_H
#define GS_COLLECTIVE_COLLECTIVE_MPI_H

/* Ranks that are MPI processes. Only collective_mpi.c and messages_mpi.c speak to MPI; this header names no MPI type.
 */

#include "collective/group.h"

typedef struct gs_mpi_settings {
    uint32_t timeout_ms;
    uint32_t ranks_per_host; /* 0: as the machine is */
    gs_logger logger;
} gs_mpi_settings;

/* GSYNC_ERR_UNSUPPORTED where the process has loaded another MPI than the one whose header this was compiled with. */
gsync_status gs_mpi_check_library(void);

/* Initialises MPI if nobody has, and arranges for MPI_Finalize at exit in that case.
 * Checks the library first. */
gsync_status gs_mpi_ensure_initialized(void);

/* What MPI's code means, GSYNC_OK or GSYNC_ERR_TRANSPORT with MPI's own words. */
gsync_status gs_mpi_translate(int code, const char *call);
#define TRY_MPI(call) GS_TRY(gs_mpi_translate((call), #call))

/* MPI is initialised and not yet finalised. */
bool gs_mpi_is_running(void);

/* Collective over MPI_COMM_WORLD. All ranks succeed or none does. own: not GSYNC_OK where this rank can already not
 * make use of it. */
gsync_status gs_mpi_create_world(gs_group **group, gsync_status own, const gs_mpi_settings *settings);

/* The same over another communicator; mpi_comm points to an MPI_Comm. */
gsync_status gs_mpi_create(gs_group **group, const void *mpi_comm, gsync_status own, const gs_mpi_settings *settings);

#endif
