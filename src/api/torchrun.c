/* SPDX-License-Identifier: Apache-2.0 */
#include "api/torchrun.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool gs_torchrun_is_there(void) {
    return getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL;
}

static gsync_status read_number(const char *name, long least, long most, int *to) {
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0') {
        return gs_fail(GSYNC_ERR_ARGUMENT, "the variable %s is not set: start the processes with torchrun or mpirun",
                       name);
    }
    char *end;
    errno = 0;
    const long number = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || number < least || number > most) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "the variable %s is '%.64s', which is not in %ld .. %ld", name, text, least,
                       most);
    }
    *to = (int)number;
    return GSYNC_OK;
}

static gsync_status read_address(gs_torchrun *torchrun) {
    enum { PORT_MAX = 65535 };
    const char *given = getenv("NCCL_COMM_ID");
    const char *host = getenv("MASTER_ADDR");
    int port = 0;
    if (given != NULL && given[0] != '\0') {
        return (size_t)snprintf(torchrun->address, sizeof torchrun->address, "%s", given) < sizeof torchrun->address
                   ? GSYNC_OK
                   : gs_fail(GSYNC_ERR_ARGUMENT, "the variable NCCL_COMM_ID is too long for a host and a port");
    }
    if (host == NULL || host[0] == '\0') {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "the variable MASTER_ADDR is not set: start the processes with torchrun or mpirun");
    }
    GS_TRY(read_number("MASTER_PORT", 1, PORT_MAX - 1, &port));
    const bool is_ipv6 = strchr(host, ':') != NULL && host[0] != '[';
    const size_t length =
        (size_t)snprintf(torchrun->address, sizeof torchrun->address, is_ipv6 ? "[%s]:%d" : "%s:%d", host, port + 1);
    return length < sizeof torchrun->address
               ? GSYNC_OK
               : gs_fail(GSYNC_ERR_ARGUMENT, "the variable MASTER_ADDR is too long for the name of a host");
}

gsync_status gs_torchrun_read(gs_torchrun *torchrun) {
    memset(torchrun, 0, sizeof *torchrun);
    GS_TRY(read_number("WORLD_SIZE", 1, INT_MAX, &torchrun->world_size));
    GS_TRY(read_number("RANK", 0, torchrun->world_size - 1L, &torchrun->rank));
    GS_TRY(read_number("LOCAL_RANK", 0, torchrun->world_size - 1L, &torchrun->local_rank));
    return read_address(torchrun);
}
