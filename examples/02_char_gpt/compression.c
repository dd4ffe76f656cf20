/* SPDX-License-Identifier: Apache-2.0 */
#include "compression.h"

#include <stdio.h>
#include <stdlib.h>

gsync_status compression_choose(gsync_reducer *reducer, const settings *s) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    options.density = s->density;
    options.feedback = s->feedback;
    options.is_stochastic = s->is_stochastic ? 1 : 0;
    options.seed = s->is_stochastic ? s->seed : 0;
    return gsync_reducer_set_wire(reducer, NULL, s->wire, &options);
}

static bool give_reason(checkpoint_reason *reason, const char *words) {
    snprintf(reason->words, sizeof reason->words, "%s", words);
    return false;
}

bool compression_save(const gsync_reducer *reducer, const char *path, int rank, int64_t step,
                      checkpoint_reason *reason) {
    const size_t bytes = gsync_state_size(reducer);
    void *state = malloc(bytes);
    if (state == NULL) {
        return give_reason(reason, "not enough memory to save the reducer's state");
    }
    const bool is_saved = gsync_state_save(reducer, state, bytes) == GSYNC_OK
                              ? checkpoint_part_write(path, rank, step, state, bytes, reason)
                              : give_reason(reason, gsync_last_error());
    free(state);
    return is_saved;
}

bool compression_load(gsync_reducer *reducer, const char *path, int rank, int64_t step, checkpoint_reason *reason) {
    const size_t bytes = gsync_state_size(reducer);
    void *state = malloc(bytes);
    if (state == NULL) {
        return give_reason(reason, "not enough memory to load the reducer's state");
    }
    bool is_loaded = checkpoint_part_read(path, rank, step, state, bytes, reason);
    if (is_loaded && gsync_state_load(reducer, state, bytes) != GSYNC_OK) {
        is_loaded = give_reason(reason, gsync_last_error());
    }
    free(state);
    return is_loaded;
}
