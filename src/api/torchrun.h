/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_API_TORCHRUN_H
#define GS_API_TORCHRUN_H

/* What torchrun, and many launchers after it, tell each process in its environment. */

#include "base/fail.h"

#include <stdbool.h>

typedef struct gs_torchrun {
    int rank;
    int world_size;
    int local_rank;
    char address[256]; /* "host:port": where rank 0 listens */
} gs_torchrun;

/* RANK and WORLD_SIZE are there. */
bool gs_torchrun_is_there(void);

/*
 * GSYNC_ERR_ARGUMENT names the variable that is missing or nonsense. The address is NCCL_COMM_ID where that is set,
 * else MASTER_ADDR and the port behind MASTER_PORT, at which torchrun itself or the trainer's own store may listen.
 */
gsync_status gs_torchrun_read(gs_torchrun *torchrun);

#endif
