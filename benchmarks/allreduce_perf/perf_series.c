/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_series.h"
#include "perf_parts.h"

#include <stdlib.h>

/* One way to all-reduce: through a reducer, or by a peer. */
typedef struct way {
    gsync_reducer *reducer;
    const perf_peer *peer;
    void *peer_state;
    perf_parts parts;
    double *times_us;
    int64_t wrong;
    int64_t bytes_copied;
    bool is_used;
} way;

typedef struct series {
    const perf_rank *self;
    const perf_values *values;
    const perf_row *row;
    perf_parts private_part; /* of the peers: one at a time works in it, and what was in it is written anew */
    way ways[PERF_WAYS];
} series;

/* ---- Making and unmaking the ways -------------------------------------------------------------------------------- */

/* One bucket of all parts: each at its own address, or, where that is NULL, in the bucket. */
static bool open_reducer(const series *s, way *w) {
    const perf_rank *self = s->self;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_SINGLE;
    options.memory = perf_memory_kind;
    options.op = s->row->op;
    if (!perf_rank_check(self, "gsync_reducer_create", gsync_reducer_create(&w->reducer, self->comm, &options))) {
        return false;
    }
    for (size_t i = 0; i < w->parts.count; i++) {
        const perf_part *part = &w->parts.part[i];
        if (!perf_rank_check(self, "gsync_reducer_add",
                             gsync_reducer_add(w->reducer, part->name, part->buffer, part->count, s->row->dtype))) {
            return false;
        }
    }
    if (!perf_rank_check(self, "gsync_reducer_commit", gsync_reducer_commit(w->reducer))) {
        return false;
    }
    for (size_t i = 0; i < w->parts.count; i++) {
        w->parts.part[i].buffer = gsync_reducer_grad(w->reducer, w->parts.part[i].name);
    }
    return gsync_bucket_count(w->reducer) == 1 || perf_rank_fail(self, "the plan", "is not one bucket");
}

static bool open_library(const series *s, perf_way which, way *w) {
    const perf_rank *self = s->self;
    const int tensors = which == PERF_OUT_OF_PLACE ? 1 : self->options->tensors;
    if (!perf_parts_init(&w->parts, self->memory, s->row->count, s->values->element_bytes, tensors) ||
        (which != PERF_IN_PLACE && !perf_parts_allocate(&w->parts))) {
        return perf_rank_fail(self, "gradients", "not enough memory");
    }
    return open_reducer(s, w);
}

static bool open_peer(series *s, way *w) {
    const perf_rank *self = s->self;
    perf_parts *memory = &s->private_part;
    if (!w->peer->brings_memory && memory->count == 0 &&
        (!perf_parts_init(memory, self->memory, s->row->count, s->values->element_bytes, 1) ||
         !perf_parts_allocate(memory))) {
        return perf_rank_fail(self, "a peer's gradient", "not enough memory");
    }
    if (!perf_parts_init(&w->parts, self->memory, s->row->count, s->values->element_bytes, 1)) {
        return perf_rank_fail(self, "a peer's gradient", "not enough memory");
    }
    void **buffer = &w->parts.part[0].buffer;
    *buffer = w->peer->brings_memory ? NULL : memory->part[0].buffer;
    return w->peer->start == NULL ||
           perf_rank_check_peer(self, w->peer, w->peer->start(w->peer_state, s->row->dtype, s->row->count, buffer));
}

static bool open_way(series *s, int which, way *w) {
    const perf_rank *self = s->self;
    const int peer = which - PERF_PEER_FIRST;
    if (peer < 0) {
        w->is_used = self->options->uses_way[which];
    } else if (peer < self->peers->count) {
        w->peer = self->peers->peer[peer];
        w->peer_state = self->peer_states[peer];
        w->is_used = w->peer->takes(w->peer_state, s->row->dtype, s->row->count);
    }
    if (!w->is_used) {
        return true;
    }
    w->times_us = calloc((size_t)(self->options->warmups + self->options->iterations), sizeof *w->times_us);
    if (w->times_us == NULL) {
        return perf_rank_fail(self, "a table of times", "not enough memory");
    }
    return w->peer != NULL ? open_peer(s, w) : open_library(s, (perf_way)which, w);
}

static void close_way(way *w) {
    if (w->is_used && w->peer != NULL && w->peer->stop != NULL) {
        w->peer->stop(w->peer_state);
    }
    gsync_reducer_destroy(&w->reducer);
    perf_parts_clear(&w->parts);
    free(w->times_us);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* By the GPU's clock, for which the host waits only when all is queued. */
static bool reduce_on_stream(const series *s, const way *w, double *time_us, gsync_step_info *info) {
    const perf_rank *self = s->self;
    const perf_stream_clock *clock = perf_memory_stream_clock;
    if (!perf_rank_check_memory(self, clock->start(self->memory))) {
        return false;
    }
    if (w->peer != NULL) {
        const char *problem = w->peer->sum(w->peer_state, s->row->dtype, s->row->count, w->parts.part[0].buffer);
        if (!perf_rank_check_peer(self, w->peer, problem)) {
            return false;
        }
    } else if (!perf_rank_check(self, "gsync_begin", gsync_begin(w->reducer, GSYNC_SYNC)) ||
               !perf_rank_check(self, "gsync_finish_on", clock->finish(self->memory, w->reducer, info))) {
        return false;
    }
    return perf_rank_check_memory(self, clock->stop(self->memory, time_us));
}

/*
 * info: filled by the library if not NULL, which takes a moment. line_up_ns: when all ranks were to start; from there a
 * way is timed whose ranks do not wait for each other: where they share processors it would not show that one ran late.
 */
static bool reduce_timed(const series *s, const way *w, int64_t line_up_ns, double *time_us, gsync_step_info *info) {
    if (s->self->options->uses_stream_clock) {
        return reduce_on_stream(s, w, time_us, info);
    }
    gsync_status status = GSYNC_OK;
    const char *problem = NULL;
    const int64_t start = w->peer != NULL && w->peer->needs_barrier ? line_up_ns : perf_clock_ns();
    if (w->peer != NULL) {
        problem = w->peer->sum(w->peer_state, s->row->dtype, s->row->count, w->parts.part[0].buffer);
    } else {
        status = gsync_begin(w->reducer, GSYNC_SYNC);
        if (status == GSYNC_OK) {
            status = gsync_finish(w->reducer, info);
        }
    }
    *time_us = (double)(perf_clock_ns() - start) / 1e3;
    if (w->peer != NULL) {
        return perf_rank_check_peer(s->self, w->peer, problem);
    }
    return perf_rank_check(s->self, "the all-reduce", status);
}

static bool check(const series *s, way *w, int index, bool spoils) {
    const perf_rank *self = s->self;
    const gsync_op op = w->peer != NULL ? GSYNC_SUM : s->row->op;
    if (spoils && self->rank == self->world - 1 && !perf_rank_check_memory(self, perf_parts_spoil(&w->parts))) {
        return false;
    }
    return !self->options->checks ||
           perf_rank_check_memory(self, perf_parts_count_wrong(&w->parts, s->values, (unsigned)index, op, &w->wrong));
}

static bool call(const series *s, way *w, int index, bool spoils) {
    const perf_rank *self = s->self;
    if (!perf_rank_check_memory(self, perf_parts_fill(&w->parts, s->values, (unsigned)index))) {
        return false;
    }
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    int64_t start = 0;
    if (!perf_rank_line_up(self, &start) ||
        !reduce_timed(s, w, start, &w->times_us[index], index == 0 ? &info : NULL)) {
        return false;
    }
    if (w->peer != NULL && w->peer->needs_barrier &&
        !perf_rank_check(self, "waiting for the others", gsync_barrier(self->comm))) {
        return false;
    }
    if (index == 0) {
        w->bytes_copied = (int64_t)info.bytes_copied;
    }
    return check(s, w, index, spoils);
}

/* The one whose result --self-test spoils. */
static const way *first_used(const series *s) {
    int which = 0;
    while (which + 1 < PERF_WAYS && !s->ways[which].is_used) {
        which++;
    }
    return &s->ways[which];
}

static bool call_all(series *s, bool spoils) {
    const int calls = s->self->options->warmups + s->self->options->iterations;
    const way *spoiled = spoils ? first_used(s) : NULL;
    for (int index = 0; index < calls; index++) {
        for (int turn = 0; turn < PERF_WAYS; turn++) {
            /* Nobody always goes first, or always after the same other. */
            const int step = index % 2 == 0 ? turn : PERF_WAYS - 1 - turn;
            way *w = &s->ways[(index + step) % PERF_WAYS];
            if (w->is_used && !call(s, w, index, w == spoiled && index + 1 == calls)) {
                return false;
            }
        }
    }
    return true;
}

/* A call takes as long as its slowest rank. */
static bool gather(const series *s, way *w, perf_figures *figures) {
    const perf_rank *self = s->self;
    const int warmups = self->options->warmups;
    const int iterations = self->options->iterations;
    const size_t calls = (size_t)warmups + (size_t)iterations;
    if (!perf_rank_check(self, "gathering times",
                         gsync_allreduce(self->comm, w->times_us, calls, GSYNC_FLOAT64, GSYNC_MAX)) ||
        !perf_rank_check(self, "gathering counts", gsync_allreduce(self->comm, &w->wrong, 1, GSYNC_INT64, GSYNC_SUM)) ||
        !perf_rank_check(self, "gathering copies",
                         gsync_allreduce(self->comm, &w->bytes_copied, 1, GSYNC_INT64, GSYNC_MAX))) {
        return false;
    }
    figures->is_measured = true;
    figures->wrong = self->options->checks ? w->wrong : -1;
    figures->bytes_copied = (uint64_t)w->bytes_copied;
    perf_figures_set_times(figures, w->times_us, warmups, iterations);
    return true;
}

bool perf_series_run(const perf_rank *self, const perf_values *values, bool spoils, perf_row *row) {
    series s = {.self = self, .values = values, .row = row};
    bool is_ok = true;
    for (int which = 0; which < PERF_WAYS && is_ok; which++) {
        is_ok = open_way(&s, which, &s.ways[which]);
    }
    is_ok = is_ok && call_all(&s, spoils);
    for (int which = 0; which < PERF_WAYS && is_ok; which++) {
        is_ok = !s.ways[which].is_used || gather(&s, &s.ways[which], &row->of[which]);
    }
    for (int which = 0; which < PERF_WAYS; which++) {
        close_way(&s.ways[which]);
    }
    perf_parts_clear(&s.private_part);
    return is_ok;
}
