/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_REPLICAS_H
#define CHAR_GPT_REPLICAS_H

/* The model's parameters, tensor by tensor, as gsync_check_replicas takes them. */

#include "model.h"

typedef struct replica_list {
    const char **names;
    const void **buffers;
    size_t *bytes;
} replica_list;

/* False when the memory does not suffice; replicas_destroy is then still to be called. */
bool replicas_list(replica_list *list, const model *m);
void replicas_destroy(replica_list *list);

#endif
