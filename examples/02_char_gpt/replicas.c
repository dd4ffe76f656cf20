/* SPDX-License-Identifier: Apache-2.0 */
#include "replicas.h"

#include <stdlib.h>

bool replicas_list(replica_list *list, const model *m) {
    list->names = calloc(m->tensor_count, sizeof *list->names);
    list->buffers = calloc(m->tensor_count, sizeof *list->buffers);
    list->bytes = calloc(m->tensor_count, sizeof *list->bytes);
    if (list->names == NULL || list->buffers == NULL || list->bytes == NULL) {
        return false;
    }
    for (size_t i = 0; i < m->tensor_count; i++) {
        const tensor *slice = &m->tensors[i];
        list->names[i] = slice->name;
        list->buffers[i] = m->parameters + slice->offset;
        list->bytes[i] = slice->count * sizeof(float);
    }
    return true;
}

void replicas_destroy(replica_list *list) {
    free(list->names);
    free(list->buffers);
    free(list->bytes);
    *list = (replica_list){.names = NULL};
}
