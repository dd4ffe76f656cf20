/* SPDX-License-Identifier: Apache-2.0 */
#include "sync/stream_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/*
 * For whom a step waits that does not come to its end. Each rank leaves word in the lane's memory, which the ranks of a
 * host share: of how far it has come, as it goes; and, when it has waited for long, of the streams that its device
 * waits for. Whose deadline passes reads what the others have left. Ranks of other hosts cannot be heard that way, nor
 * ranks that share nothing but NCCL.
 */

/* ---- words in the lane ---- */

enum { WORD_POSITION, WORD_PRODUCERS };
enum { PHASE_BITS = 4, BUCKET_BITS = 24, STEP_SHIFT = PHASE_BITS + BUCKET_BITS };
static const uint64_t PHASE_MAX = ((uint64_t)1 << PHASE_BITS) - 1;
static const uint64_t BUCKET_MAX = ((uint64_t)1 << BUCKET_BITS) - 1;

/* The second word's phase, with the first bucket that waits; 0: it has not said. */
enum { PRODUCERS_ARE_DONE = 1, PRODUCERS_ARE_AT_WORK };

static uint64_t pack(int phase, uint64_t step, size_t bucket) {
    const uint64_t number = bucket < BUCKET_MAX ? bucket : BUCKET_MAX;
    return (uint64_t)phase | number << PHASE_BITS | step << STEP_SHIFT;
}

static gs_stream_position unpack(uint64_t word) {
    return (gs_stream_position){.phase = (int)(word & PHASE_MAX),
                                .bucket = (size_t)(word >> PHASE_BITS & BUCKET_MAX),
                                .step = word >> STEP_SHIFT};
}

static void tell(const gs_stream *stream, int word, uint64_t value) {
    if (stream->pipeline->lane != NULL) {
        gs_lane_tell(stream->pipeline->lane, word, value);
    }
}

static bool hear(const gs_stream *stream, int rank, gs_lane_account *account) {
    return stream->pipeline->lane != NULL && gs_lane_hear(stream->pipeline->lane, rank, account);
}

static gs_stream_position own_position(const gs_stream *stream) {
    gs_lane_account own = {.has_left = false};
    return hear(stream, stream->rank, &own) ? unpack(own.words[WORD_POSITION]) : (gs_stream_position){.step = 0};
}

void gs_stream_tell_launched(const gs_stream *stream, uint64_t step, size_t bucket_count) {
    const bool is_all = bucket_count == stream->pipeline->plan->bucket_count;
    tell(stream, WORD_POSITION, pack(is_all ? GS_STREAM_LAUNCHED : GS_STREAM_LAUNCHING, step, bucket_count));
}

void gs_stream_tell_phase(const gs_stream *stream, gs_stream_phase phase, uint64_t step) {
    tell(stream, WORD_POSITION, pack(phase, step, 0));
}

void gs_stream_tell_accumulation(const gs_stream *stream) {
    gs_stream_tell_phase(stream, GS_STREAM_ACCUMULATING, own_position(stream).step);
}

void gs_stream_tell_producers(const gs_stream *stream, uint64_t step, size_t launched) {
    size_t bucket = 0;
    const bool is_waiting = gs_stream_find_busy_producer(stream, launched, &bucket);
    tell(stream, WORD_PRODUCERS, pack(is_waiting ? PRODUCERS_ARE_AT_WORK : PRODUCERS_ARE_DONE, step, bucket));
}

void gs_stream_forget_wait(const gs_stream *stream) {
    tell(stream, WORD_PRODUCERS, 0);
}

void gs_stream_tell_wait(const gs_stream *stream) {
    const gs_stream_position own = own_position(stream);
    if (own.phase == GS_STREAM_LAUNCHED || own.phase == GS_STREAM_ACCUMULATING) {
        gs_stream_tell_producers(stream, own.phase == GS_STREAM_LAUNCHED ? own.step : 0, stream->launched);
    }
}

/* ---- who is late ---- */

static bool is_late(gs_stream_position at, uint64_t step) {
    return at.step < step || (at.step == step && at.phase == GS_STREAM_LAUNCHING);
}

static void add_laggard(gs_stream_laggards *list, int rank, bool has_left, gs_stream_position at) {
    if (list->count < GS_STREAM_LAGGARDS) {
        list->first[list->count] = (gs_stream_laggard){.rank = rank, .has_left = has_left, .position = at};
    }
    list->count++;
}

gs_stream_delay gs_stream_find_delay(const gs_stream *stream, uint64_t step, uint64_t plan) {
    gs_stream_delay delay = {.step = step, .plan = plan};
    for (int rank = 0; rank < stream->world_size; rank++) {
        gs_lane_account of;
        if (step == 0 && rank != stream->rank) {
            continue;
        }
        if (!hear(stream, rank, &of)) {
            delay.unheard++;
            continue;
        }
        const gs_stream_position at = unpack(of.words[WORD_POSITION]);
        const gs_stream_position producers = unpack(of.words[WORD_PRODUCERS]);
        if (rank != stream->rank && is_late(at, step)) {
            add_laggard(&delay.late, rank, of.has_left, at);
            delay.has_lost = delay.has_lost || of.has_left;
        }
        if (producers.phase == PRODUCERS_ARE_AT_WORK && producers.step == step) {
            add_laggard(&delay.stuck, rank, of.has_left, producers);
        }
    }
    return delay;
}

/* The oldest step that the device is not through with; else the one that is being launched. */
static gs_stream_delay find_present_delay(const gs_stream *stream) {
    const uint64_t taken = stream->turns_taken;
    const gs_stream_position own = own_position(stream);
    for (uint64_t i = taken > GS_STREAM_TURNS ? taken - GS_STREAM_TURNS : 0; i < taken; i++) {
        const gs_stream_turn *turn = &stream->turns[i % GS_STREAM_TURNS];
        bool is_done = true;
        if (turn->is_open && gs_cuda_is_done(stream->cuda, turn->finished, &is_done) == GSYNC_OK && !is_done) {
            return gs_stream_find_delay(stream, turn->step, turn->plan);
        }
    }
    const bool is_in_step = own.phase == GS_STREAM_LAUNCHING || own.phase == GS_STREAM_LAUNCHED;
    return gs_stream_find_delay(stream, is_in_step ? own.step : 0, stream->pipeline->plan->digest);
}

/* ---- in words ---- */

/* Short enough that the other ranks are told all of it. */
typedef struct words {
    char text[360];
    size_t used;
} words;

static void add(words *to, const char *format, ...) GS_PRINTF(2, 3);

static void add(words *to, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(to->text + to->used, sizeof to->text - to->used, format, arguments);
    va_end(arguments);
    to->used += length > 0 ? (size_t)length : 0;
    to->used = to->used < sizeof to->text ? to->used : sizeof to->text - 1;
}

/* The ranks may have agreed on another plan since. */
static bool has_plan(const gs_stream *stream, const gs_stream_delay *delay) {
    return delay->plan == stream->pipeline->plan->digest;
}

static void add_bucket(words *to, const gs_stream *stream, const gs_stream_delay *delay, size_t index) {
    const gs_pipeline *pipeline = stream->pipeline;
    add(to, "bucket %zu", index);
    if (has_plan(stream, delay) && index < pipeline->plan->bucket_count) {
        const gs_bucket *bucket = &pipeline->plan->buckets[index];
        const uint32_t *members = &pipeline->plan->members[bucket->first];
        const char *first = pipeline->gradients[members[0]].name;
        const char *last = pipeline->gradients[members[bucket->gradient_count - 1]].name;
        add(to, bucket->gradient_count == 1 ? " with gradient '%.60s'" : " with gradients '%.60s'", first);
        if (bucket->gradient_count != 1) {
            add(to, " to '%.60s'", last);
        }
    }
}

static void add_position(words *to, const gs_stream *stream, const gs_stream_delay *delay,
                         const gs_stream_laggard *of) {
    const gs_stream_position *at = &of->position;
    if (of->has_left) {
        add(to, "has destroyed its reducer");
    } else if (at->phase == GS_STREAM_COMMITTING) {
        add(to, "is in gsync_reducer_commit");
    } else if (at->phase == GS_STREAM_ACCUMULATING) {
        add(to, "has begun no step, but a micro-batch with GSYNC_ACCUMULATE");
    } else if (at->step == delay->step) {
        add(to, "has launched %zu", at->bucket);
        add(to, has_plan(stream, delay) ? " of %zu buckets" : " buckets", stream->pipeline->plan->bucket_count);
    } else if (at->phase == GS_STREAM_BETWEEN) {
        add(to, "has not begun it");
    } else {
        add(to, "is still at step %" PRIu64, at->step);
    }
}

static void add_late(words *to, const gs_stream *stream, const gs_stream_delay *delay) {
    const gs_stream_laggards *late = &delay->late;
    for (uint32_t i = 0; i < late->count && i < GS_STREAM_LAGGARDS; i++) {
        const gs_stream_position *at = &late->first[i].position;
        add(to, i == 0 ? "rank %d " : "; rank %d ", late->first[i].rank);
        add_position(to, stream, delay, &late->first[i]);
        add(to, ", and ");
        add_bucket(to, stream, delay, at->step == delay->step ? at->bucket : 0);
        add(to, " waits for it");
    }
    if (late->count > GS_STREAM_LAGGARDS) {
        add(to, "; and so do %" PRIu32 " more ranks", late->count - GS_STREAM_LAGGARDS);
    }
}

static void add_stuck(words *to, const gs_stream *stream, const gs_stream_delay *delay) {
    const gs_stream_laggard *of = &delay->stuck.first[0];
    add(to, delay->unheard == 0 && delay->step != 0 ? "all ranks have launched all buckets, but " : "");
    add(to, "on rank %d a stream has not done what makes gradients final, and ", of->rank);
    add_bucket(to, stream, delay, of->position.bucket);
    add(to, " waits for it: look for a kernel, a copy or an event that hangs there");
}

static void add_unheard_ranks(words *to, const gs_stream *stream) {
    enum { NAMED_MAX = 8 };
    gs_lane_account of;
    int named = 0;
    for (int rank = 0; rank < stream->world_size && named <= NAMED_MAX; rank++) {
        if (!hear(stream, rank, &of)) {
            add(to, "%s", named == 0 ? "" : ", ");
            add(to, named < NAMED_MAX ? "%d" : "...", rank);
            named++;
        }
    }
}

static void add_unheard(words *to, const gs_stream *stream, const gs_stream_delay *delay) {
    const bool has_company = stream->world_size - delay->unheard > 1;
    add(to, "rank %d%s launched all buckets; how far %s ", stream->rank,
        has_company ? " and the others of its host have" : " has", delay->unheard == 1 ? "rank" : "ranks");
    add_unheard_ranks(to, stream);
    add(to,
        "%s not known here, since no memory is shared with %s: look for a rank that has another error than this, or "
        "none",
        delay->unheard == 1 ? " is, is" : " are, is", delay->unheard == 1 ? "it" : "them");
}

static void add_reason(words *to, const gs_stream *stream, const gs_stream_delay *delay) {
    if (delay->late.count != 0) {
        add_late(to, stream, delay);
        add(to, ": look for an error or a hang there");
    } else if (delay->stuck.count != 0) {
        add_stuck(to, stream, delay);
    } else if (delay->unheard != 0) {
        add_unheard(to, stream, delay);
    } else if (delay->step != 0) {
        add(to, "all ranks have launched all buckets, and no stream that makes gradients final is known to hang: look "
                "at NCCL (NCCL_DEBUG=INFO, or ncclras) and at the devices");
    } else {
        add(to, "look for a kernel or a copy that hangs");
    }
}

gsync_status gs_stream_fail_delay(const gs_stream *stream, const gs_stream_delay *delay, const char *after) {
    const uint32_t timeout_ms = stream->pipeline->group->timeout_ms;
    words why = {.used = 0};
    if (delay->has_lost) {
        add_late(&why, stream, delay);
        return gs_fail(GSYNC_ERR_PEER_LOST, "step %" PRIu64 " cannot end: %s", delay->step, why.text);
    }
    add_reason(&why, stream, delay);
    if (delay->step == 0) {
        return gs_fail(
            GSYNC_ERR_TIMEOUT,
            "rank %d: the device is not through with what was queued %u ms after %s: %s, or raise timeout_ms",
            stream->rank, timeout_ms, after, why.text);
    }
    return gs_fail(GSYNC_ERR_TIMEOUT, "step %" PRIu64 " is not over %u ms after %s: %s, or raise timeout_ms",
                   delay->step, timeout_ms, after, why.text);
}

gsync_status gs_stream_fail_late(const gs_stream *stream) {
    gs_stream_tell_wait(stream);
    const gs_stream_delay delay = find_present_delay(stream);
    return gs_stream_fail_delay(stream, &delay, "this rank began to wait");
}

gsync_status gs_stream_check_lost(const gs_stream *stream) {
    const gs_stream_delay delay = find_present_delay(stream);
    return delay.has_lost ? gs_stream_fail_delay(stream, &delay, "") : GSYNC_OK;
}

gsync_status gs_stream_explain(const gs_stream *stream, gsync_status status) {
    char text[GS_FAIL_TEXT_MAX];
    words why = {.used = 0};
    snprintf(text, sizeof text, "%s", gsync_last_error());
    /* What the watch has ended looks as if it were over. */
    const bool was_watched = atomic_load(&stream->watch.has_failed) != 0;
    const gs_stream_delay delay = was_watched ? stream->watch.delay : find_present_delay(stream);
    add_late(&why, stream, &delay);
    if (delay.late.count == 0 || strstr(text, why.text) != NULL) {
        return gs_fail(status, "%s", text); /* looking may have left other words */
    }
    return gs_fail(status, "%s; step %" PRIu64 ": %s", text, delay.step, why.text);
}
