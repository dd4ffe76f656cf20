/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_MEMORY_H
#define PERF_MEMORY_H

/*
 * Where gradients are: on the host, or on a GPU. Which of the two is a question of what is linked. Each rank opens it
 * for itself. Texts that are returned say what went wrong, and NULL that nothing did.
 */

#include <gradsync/gradsync.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct perf_memory perf_memory;

/* Where the library puts gradients that have no address. */
extern const gsync_memory perf_memory_kind;

/* Whose memory it is for the calling thread: on a host with GPUs, the one for the rank of this number there. */
const char *perf_memory_choose(int local_rank);

const char *perf_memory_open(perf_memory **memory);
void perf_memory_close(perf_memory **memory);

/* One line, valid until close. NULL: there is nothing to say. */
const char *perf_memory_describe(const perf_memory *memory);

/* NULL: there is not enough. */
void *perf_memory_allocate(perf_memory *memory, size_t bytes);
void perf_memory_free(perf_memory *memory, void *allocated);

/* ---- What is in a gradient --------------------------------------------------------------------------------------- */

/* The first bytes of some memory, and where the host sees them. The next piece may be seen in the same place. */
typedef struct perf_piece {
    void *at;
    void *host;
    size_t bytes; /* a multiple of 8, but for the last */
} perf_piece;

perf_piece perf_memory_piece(perf_memory *memory, void *at, size_t bytes);
const char *perf_memory_get(perf_memory *memory, const perf_piece *piece); /* what is there to the host */
const char *perf_memory_put(perf_memory *memory, const perf_piece *piece); /* what the host wrote to there */

/* ---- A GPU's own clock ------------------------------------------------------------------------------------------- */

/* Of what is queued on the rank's stream between start and stop, which waits for it. */
typedef struct perf_stream_clock {
    const char *(*start)(perf_memory *memory);
    /* Ends a step for this stream, without waiting: gsync_finish_on. */
    gsync_status (*finish)(perf_memory *memory, gsync_reducer *reducer, gsync_step_info *info);
    const char *(*stop)(perf_memory *memory, double *time_us);
} perf_stream_clock;

/* NULL where gradients are on the host. */
extern const perf_stream_clock *const perf_memory_stream_clock;

#ifdef __cplusplus
}
#endif

#endif
