/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "sync/pipeline.h"

/*
 * is_auto: after the warm-up a bucket travels three times each way, in turn, and then only narrow if that was clearly
 * faster. A rank that comes early to a bucket waits for the others; the one that comes last sees how long the bucket
 * takes. So the shortest time that any rank saw is what counts, and all ranks take it from the same message.
 */

enum { TRIALS = 3, CHOICES_PER_PIECE = 128 };

static const double GAIN_MIN = 0.03;

static bool is_auto(const gs_pipeline *pipeline, size_t bucket) {
    return pipeline->choices != NULL && pipeline->wires[pipeline->plan->buckets[bucket].wire].is_auto;
}

/* Trials of this bucket before this step. Negative: it has not begun. */
static int64_t trial_of(const gs_pipeline *pipeline, size_t bucket) {
    const uint64_t warmup = pipeline->wires[pipeline->plan->buckets[bucket].wire].warmup_steps;
    const uint64_t before = pipeline->choices_since > warmup ? pipeline->choices_since : warmup;
    return (int64_t)pipeline->step.step - (int64_t)before - 1;
}

bool gs_choice_is_on_trial(const gs_pipeline *pipeline, size_t bucket) {
    if (!is_auto(pipeline, bucket)) {
        return false;
    }
    const int64_t trial = trial_of(pipeline, bucket);
    return trial >= 0 && trial < 2 * TRIALS;
}

bool gs_choice_has_trials(const gs_pipeline *pipeline) {
    for (size_t b = 0; pipeline->choices != NULL && b < pipeline->plan->bucket_count; b++) {
        if (gs_choice_is_on_trial(pipeline, b)) {
            return true;
        }
    }
    return false;
}

bool gs_choice_is_native(const gs_pipeline *pipeline, size_t bucket) {
    if (!is_auto(pipeline, bucket)) {
        return false;
    }
    const int64_t trial = trial_of(pipeline, bucket);
    return trial < 2 * TRIALS ? trial % 2 == 0 : pipeline->choices[bucket].is_native;
}

void gs_choice_start(gs_pipeline *pipeline, uint64_t steps_before) {
    pipeline->choices_since = steps_before;
    for (size_t b = 0; pipeline->choices != NULL && b < pipeline->plan->gradient_count; b++) {
        pipeline->choices[b] = (gs_choice){.native_ns = UINT64_MAX, .narrow_ns = UINT64_MAX};
    }
}

void gs_choice_note_launch(gs_pipeline *pipeline) {
    pipeline->bucket_start_ns = pipeline->choices != NULL ? gs_clock_ns() : 0;
}

uint64_t gs_choice_since_launch(const gs_pipeline *pipeline) {
    return pipeline->choices != NULL ? gs_clock_ns() - pipeline->bucket_start_ns : 0;
}

void gs_choice_note(gs_pipeline *pipeline, size_t bucket, uint64_t took_ns) {
    if (gs_choice_is_on_trial(pipeline, bucket)) {
        gs_choice *choice = &pipeline->choices[bucket];
        uint64_t *shortest = trial_of(pipeline, bucket) % 2 == 0 ? &choice->native_ns : &choice->narrow_ns;
        *shortest = took_ns < *shortest ? took_ns : *shortest;
    }
}

/* Wires may have warm-ups of their own, so some buckets may have to decide while others are still trying. */
bool gs_choice_is_due(const gs_pipeline *pipeline) {
    for (size_t b = 0; pipeline->choices != NULL && b < pipeline->plan->bucket_count; b++) {
        if (is_auto(pipeline, b) && trial_of(pipeline, b) == 2 * TRIALS - 1) {
            return true;
        }
    }
    return false;
}

static size_t piece_length(const gs_pipeline *pipeline) {
    const size_t left = pipeline->plan->bucket_count - pipeline->choices_done;
    return left < CHOICES_PER_PIECE ? left : CHOICES_PER_PIECE;
}

gsync_status gs_choice_post(gs_pipeline *pipeline) {
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER,
        .topic = {.what = "wire choice",
                  .step = pipeline->step.step,
                  .part = pipeline->choices_done,
                  .digest = pipeline->plan->digest},
        .mail = pipeline->choices + pipeline->choices_done,
        .mail_bytes = piece_length(pipeline) * sizeof *pipeline->choices,
    };
    return gs_lane_post(pipeline->lane, &operation);
}

static void decide(gs_pipeline *pipeline, size_t bucket) {
    gs_choice *choice = &pipeline->choices[bucket];
    if (is_auto(pipeline, bucket) && trial_of(pipeline, bucket) == 2 * TRIALS - 1) {
        choice->is_native = (double)choice->narrow_ns > (1.0 - GAIN_MIN) * (double)choice->native_ns;
        choice->is_made = true;
    }
}

bool gs_choice_take(gs_pipeline *pipeline) {
    const size_t first = pipeline->choices_done;
    const size_t length = piece_length(pipeline);
    for (int rank = 0; rank < pipeline->group->world_size; rank++) {
        size_t bytes;
        const unsigned char *mail = gs_lane_mail(pipeline->lane, rank, &bytes);
        for (size_t i = 0; i < length; i++) {
            gs_choice theirs;
            gs_choice *ours = &pipeline->choices[first + i];
            memcpy(&theirs, mail + i * sizeof theirs, sizeof theirs);
            ours->native_ns = theirs.native_ns < ours->native_ns ? theirs.native_ns : ours->native_ns;
            ours->narrow_ns = theirs.narrow_ns < ours->narrow_ns ? theirs.narrow_ns : ours->narrow_ns;
        }
    }
    for (size_t i = 0; i < length; i++) {
        decide(pipeline, first + i);
    }
    pipeline->choices_done += length;
    return pipeline->choices_done == pipeline->plan->bucket_count;
}
