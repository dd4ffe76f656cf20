/* SPDX-License-Identifier: Apache-2.0 */
/* The same for a trainer with streams, on a machine that may have no GPU: its gradient is on the host. */
#include <gradsync/gradsync_cuda.h>
#include <stdio.h>
#include <string.h>

static gsync_status take_step(gsync_reducer *reducer, float *grad) {
    gsync_status status = gsync_reducer_add(reducer, "weights", grad, 3, GSYNC_FLOAT32);
    status = status == GSYNC_OK ? gsync_reducer_commit(reducer) : status;
    status = status == GSYNC_OK ? gsync_begin(reducer, GSYNC_SYNC) : status;
    if (status != GSYNC_OK) {
        return status;
    }
    if (gsync_ready_on(reducer, grad, NULL) != GSYNC_ERR_ARGUMENT ||
        strstr(gsync_last_error(), "host memory") == NULL) {
        return GSYNC_ERR_INTERNAL;
    }
    return gsync_finish(reducer, NULL);
}

int main(void) {
    gsync_comm *comm = NULL;
    gsync_reducer *reducer = NULL;
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    float grad[3] = {1, 2, 3};
    options.transport = GSYNC_TRANSPORT_SINGLE;
    gsync_status status = gsync_comm_create(&comm, &options);
    status = status == GSYNC_OK ? gsync_reducer_create(&reducer, comm, NULL) : status;
    status = status == GSYNC_OK ? take_step(reducer, grad) : status;
    if (status != GSYNC_OK) {
        fprintf(stderr, "%s\n", gsync_last_error());
    }
    gsync_reducer_destroy(&reducer);
    gsync_comm_destroy(&comm);
    return status == GSYNC_OK && grad[2] == 3 ? 0 : 1;
}
