/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_series.h"

#include <stdlib.h>

/* One way to all-reduce: through a reducer, or, without one, by the peer. */
typedef struct way {
    gsync_reducer *reducer;
    void *buffer;
    void *owned; /* buffer, where we allocated it */
    double *times_us;
    int64_t wrong;
    int64_t bytes_copied;
    bool is_used;
} way;

typedef struct series {
    const perf_rank *self;
    const perf_values *values;
    const perf_row *row;
    way ways[PERF_WAYS];
} series;

static const char GRADIENT[] = "gradient";

/* ---- Making and unmaking the ways -------------------------------------------------------------------------------- */

static bool allocate_buffer(const series *s, way *w) {
    /* Whole pages, as a trainer's large tensors are. */
    const size_t page = 4096;
    w->owned = aligned_alloc(page, (s->row->bytes + page - 1) / page * page);
    w->buffer = w->owned;
    return w->owned != NULL || perf_rank_fail(s->self, "a buffer", "not enough memory");
}

/* The gradient is at w->buffer, or, where that is NULL, in the library's bucket. */
static bool open_reducer(const series *s, way *w) {
    const perf_rank *self = s->self;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = GSYNC_STRATEGY_SINGLE;
    options.op = s->row->op;
    if (!perf_rank_check(self, "gsync_reducer_create", gsync_reducer_create(&w->reducer, self->comm, &options)) ||
        !perf_rank_check(self, "gsync_reducer_add",
                         gsync_reducer_add(w->reducer, GRADIENT, w->buffer, s->row->count, s->row->dtype)) ||
        !perf_rank_check(self, "gsync_reducer_commit", gsync_reducer_commit(w->reducer))) {
        return false;
    }
    w->buffer = gsync_reducer_grad(w->reducer, GRADIENT);
    if (w->buffer == NULL || gsync_bucket_count(w->reducer) != 1) {
        return perf_rank_fail(self, "the plan", "one gradient does not make one bucket");
    }
    return true;
}

static bool open_way(const series *s, perf_way which, way *w) {
    const perf_rank *self = s->self;
    const int calls = self->options->warmups + self->options->iterations;
    w->is_used = which != PERF_PEER || (self->peer != NULL && self->peer->takes(s->row->dtype, s->row->count));
    if (!w->is_used) {
        return true;
    }
    w->times_us = calloc((size_t)calls, sizeof *w->times_us);
    if (w->times_us == NULL) {
        return perf_rank_fail(self, "a table of times", "not enough memory");
    }
    if (which != PERF_IN_PLACE && !allocate_buffer(s, w)) {
        return false;
    }
    return which == PERF_PEER || open_reducer(s, w);
}

static void close_way(way *w) {
    gsync_reducer_destroy(&w->reducer);
    free(w->owned);
    free(w->times_us);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* info: filled by the library if not NULL, which takes a moment. */
static bool reduce_timed(const series *s, const way *w, double *time_us, gsync_step_info *info) {
    const perf_rank *self = s->self;
    gsync_status status = GSYNC_OK;
    const char *problem = NULL;
    const int64_t start = perf_clock_ns();
    if (w->reducer != NULL) {
        status = gsync_begin(w->reducer, GSYNC_SYNC);
        if (status == GSYNC_OK) {
            status = gsync_finish(w->reducer, info);
        }
    } else {
        problem = self->peer->sum(w->buffer, s->row->count, s->row->dtype);
    }
    *time_us = (double)(perf_clock_ns() - start) / 1e3;
    if (problem != NULL) {
        return perf_rank_fail(self, self->peer->name, problem);
    }
    return perf_rank_check(self, "the all-reduce", status);
}

/* The smallest error there is, in the last element of the last rank: the count has a long way to go. */
static void spoil(const series *s, const way *w) {
    if (s->self->rank == s->self->world - 1) {
        unsigned char *last = (unsigned char *)w->buffer + s->row->bytes - s->values->element_bytes;
        *last ^= 1u;
    }
}

static bool call(const series *s, perf_way which, way *w, int index, bool spoils) {
    const perf_row *row = s->row;
    const perf_options *options = s->self->options;
    perf_values_fill(s->values, (unsigned)index, w->buffer, row->count);
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    if (!perf_rank_line_up(s->self) || !reduce_timed(s, w, &w->times_us[index], index == 0 ? &info : NULL)) {
        return false;
    }
    if (index == 0) {
        w->bytes_copied = (int64_t)info.bytes_copied;
    }
    if (spoils && which == PERF_OUT_OF_PLACE && index + 1 == options->warmups + options->iterations) {
        spoil(s, w);
    }
    if (options->checks) {
        /* The peer always sums: see perf_peer.h. */
        const gsync_op op = which == PERF_PEER ? GSYNC_SUM : row->op;
        w->wrong += (int64_t)perf_values_wrong(s->values, (unsigned)index, op, w->buffer, row->count);
    }
    return true;
}

static bool call_all(series *s, bool spoils) {
    const int calls = s->self->options->warmups + s->self->options->iterations;
    for (int index = 0; index < calls; index++) {
        for (int turn = 0; turn < PERF_WAYS; turn++) {
            /* Nobody always comes after the same other. */
            const perf_way which = (perf_way)((index + turn) % PERF_WAYS);
            way *w = &s->ways[which];
            if (w->is_used && !call(s, which, w, index, spoils)) {
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
        is_ok = open_way(&s, (perf_way)which, &s.ways[which]);
    }
    is_ok = is_ok && call_all(&s, spoils);
    for (int which = 0; which < PERF_WAYS && is_ok; which++) {
        is_ok = !s.ways[which].is_used || gather(&s, &s.ways[which], &row->of[which]);
    }
    for (int which = 0; which < PERF_WAYS; which++) {
        close_way(&s.ways[which]);
    }
    return is_ok;
}
