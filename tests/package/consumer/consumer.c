/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer of one rank, as somebody who only has the installed files would write it. C and C++. */
#include <gradsync/gradsync.h>
#include <stdio.h>

int main(void) {
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.transport = GSYNC_TRANSPORT_SINGLE;
    gsync_comm *comm = NULL;
    if (gsync_comm_create(&comm, &options) != GSYNC_OK) {
        fprintf(stderr, "%s\n", gsync_last_error());
        return 1;
    }
    const int ranks = gsync_world_size(comm);
    gsync_comm_destroy(&comm);
    printf("gradsync %s, %d rank\n", gsync_version(), ranks);
    return ranks == 1 ? 0 : 1;
}
