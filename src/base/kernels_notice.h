/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Part of kernels_body.h, like kernels_real.h (ROUNDS: elements may have to cross a narrow wire): reductions that round
 * on the way and notice things.
 *
 * Steps of whole vectors hold as long as everything is ordinary: finite, and not about to be saturated or flushed. A
 * step in which something may not be is done over, before it has been stored (targets may be the sources), by the
 * function that also does the last few elements and the reductions of many buffers: it holds for everything, counts,
 * and finds out whose infinity it was.
 */

/* Vectors of a step: elements for whole rounds over the sums of squares. */
#define NOTICED (LANES * UNROLL < SQUARE_SUMS ? SQUARE_SUMS / LANES : (size_t)UNROLL)

INLINE VECTOR NAME(magnitude)(VECTOR x) {
    return (VECTOR)((VECTOR_OF_BITS)x & ~(VECTOR_OF_BITS)NAME(all)(-(REAL)0));
}

/* ---- everything, element by element ---- */

typedef struct NAME(tally) {
    VECTOR_OF_BITS saturated; /* counted down, because true is -1 */
    VECTOR_OF_BITS flushed;
    vector_f32 absmax;
} NAME(tally);

static void NAME(add_tally)(gs_findings *findings, const NAME(tally) * tally) {
    for (size_t k = 0; k < LANES; k++) {
        findings->saturated += (uint64_t)-tally->saturated[k];
        findings->flushed += (uint64_t)-tally->flushed[k];
    }
    take_absmax(findings, tally->absmax);
}

INLINE VECTOR NAME(round_carefully)(VECTOR x, const narrow_wire *wire, NAME(tally) * tally) {
    if (wire->to == GS_ROUND_NOT) {
        return x;
    }
    const VECTOR_OF_BITS is_finite = x - x == 0; /* NOLINT(misc-redundant-expression): NaN unless finite */
    const VECTOR_OF_BITS is_beyond = is_finite & (NAME(magnitude)(x) >= NAME(all)((REAL)wire->limit));
    const VECTOR_OF_BITS sign = (VECTOR_OF_BITS)x & (VECTOR_OF_BITS)NAME(all)(-(REAL)0);
    const VECTOR saturated = (VECTOR)((VECTOR_OF_BITS)NAME(all)((REAL)wire->saturated) | sign);
    const VECTOR rounded = NAME(choose)(is_beyond, saturated, NAME(cross)(x, wire));
    tally->saturated += is_beyond;
    tally->flushed += (rounded == 0) & (x != 0);
    return NAME(choose)(is_finite, rounded, x);
}

/* sum = x, or sum + x */
INLINE void NAME(sum_carefully)(REAL *sum, const REAL *x, size_t lanes, bool is_first, const narrow_wire *wire,
                                NAME(tally) * tally) {
    const VECTOR source = NAME(load)(x, lanes);
    if (wire->to != GS_ROUND_NOT) {
        const VECTOR_OF_BITS is_finite = source - source == 0; /* NOLINT(misc-redundant-expression) */
        const VECTOR finite = (VECTOR)((VECTOR_OF_BITS)source & is_finite);
        tally->absmax = larger_f32(tally->absmax, (vector_f32)NAME(magnitude)(finite)); /* never of doubles */
    }
    const VECTOR rounded = NAME(round_carefully)(source, wire, tally);
    NAME(store)(sum, is_first ? rounded : NAME(load)(sum, lanes) + rounded, lanes);
}

INLINE void NAME(finish_carefully)(REAL *x, size_t lanes, const narrow_wire *wire, NAME(tally) * tally) {
    NAME(store)(x, NAME(round_carefully)(NAME(load)(x, lanes), wire, tally), lanes);
}

static void NAME(find_nonfinite)(const gs_reduction *job, gs_findings *findings, size_t at, const REAL *results) {
    size_t k = 0;
    while (isfinite(results[k])) {
        k++;
    }
    findings->has_nonfinite = true;
    findings->nonfinite_element = at + k;
    findings->nonfinite_source = -1;
    for (int s = job->source_count - 1; s >= 0; s--) {
        if (!isfinite(((const REAL *)job->sources[s])[job->first + at + k])) {
            findings->nonfinite_source = s;
        }
    }
}

/* Elements [at, at + count) of the job, at most STRIP of them, go to results. */
NOT_INLINE void NAME(reduce_carefully)(const gs_reduction *job, gs_findings *findings, size_t at, size_t count,
                                       REAL *results) {
    const narrow_wire wire = wire_of(job->rounding);
    const narrow_wire result_wire = result_wire_of(job->rounding);
    NAME(tally) tally = {{0}, {0}, {0}};
    const size_t whole = count - count % LANES;
    for (int s = 0; s < job->source_count; s++) {
        const REAL *const source = (const REAL *)job->sources[s] + job->first + at;
        for (size_t k = 0; k < whole; k += LANES) {
            NAME(sum_carefully)(results + k, source + k, LANES, s == 0, &wire, &tally);
        }
        NAME(sum_carefully)(results + whole, source + whole, count - whole, s == 0, &wire, &tally);
    }
    NAME(divide)(results, job->division, count);
    for (size_t k = 0; k < whole; k += LANES) {
        NAME(finish_carefully)(results + k, LANES, &result_wire, &tally);
    }
    NAME(finish_carefully)(results + whole, count - whole, &result_wire, &tally);
    if (wire.to != GS_ROUND_NOT) {
        NAME(add_tally)(findings, &tally);
    }
    if (!findings->has_nonfinite && !NAME(is_finite)(results, count)) {
        NAME(find_nonfinite)(job, findings, at, results);
    }
}

/* ---- whole steps ---- */

/* Finite results whose sum overflows are a false alarm. */
INLINE bool NAME(may_be_nonfinite)(const VECTOR *results) {
    VECTOR sum = results[0];
    for (size_t u = 1; u < NOTICED; u++) {
        sum += results[u];
    }
    return NAME(any)(NAME(is_nan)(sum - sum)); /* NOLINT(misc-redundant-expression) */
}

INLINE void NAME(add_squares_of_step)(double_vector *sums, const VECTOR *results) {
    enum { PARTS = LANES * sizeof(double) / VECTOR_BYTES }; /* of a vector, that fill one as doubles */
    for (size_t u = 0; u < NOTICED; u++) {
        for (size_t part = 0; part < PARTS; part++) {
            const double_vector wide = NAME(widen_part)(results[u], part);
            double_vector *const sum = &sums[(u * PARTS + part) % SQUARE_VECTORS];
            *sum = NAME(add_square)(*sum, wide);
        }
    }
}

/* Whether any is smaller than what is kept: of sources, and of results before they are rounded. */
INLINE bool NAME(is_any_smaller)(const NAME(buffers) * of, size_t at, const VECTOR *results, const narrow_wire *wire) {
    words least = (words){0} - 1;
    for (size_t u = 0; u < NOTICED; u++) {
        least = NAME(least_but_0)(least, results[u]);
        for (int s = 0; s < of->source_count; s++) {
            least = NAME(least_but_0)(least, NAME(load)(of->sources[s] + at + u * LANES, LANES));
        }
    }
    return any_f32((vector_of_bits_f32)(least < (words)all_f32(wire->kept) - 1));
}

/* A vector of the step, not rounded yet as the result. `signs`: of all sources, those that they have in common. */
INLINE VECTOR NAME(sum_of_sources)(const NAME(buffers) * of, size_t at, bool rounds, const narrow_wire *wire,
                                   extremes *seen, VECTOR *signs) {
    VECTOR source = NAME(load)(of->sources[0] + at, LANES);
    VECTOR sum = rounds ? NAME(round_source)(source, wire, seen) : source;
    *signs = source;
    for (int s = 1; s < of->source_count; s++) {
        source = NAME(load)(of->sources[s] + at, LANES);
        sum += rounds ? NAME(round_source)(source, wire, seen) : source;
        *signs = (VECTOR)((VECTOR_OF_BITS)*signs & (VECTOR_OF_BITS)source);
    }
    return sum;
}

/* Returns whether the step holds. `seen` is of all steps that hold, its least of those that are not suspicious. */
INLINE bool NAME(try_step)(const gs_reduction *job, const NAME(buffers) * of, size_t at, bool rounds,
                           const narrow_wire *wire, extremes *seen, VECTOR *result) {
    const VECTOR by = NAME(all)((REAL)wire->by);
    const VECTOR undo = NAME(all)((REAL)wire->undo);
    const extremes before = *seen;
    VECTOR unrounded[NOTICED];
    for (size_t u = 0; u < NOTICED; u++) {
        VECTOR signs;
        const VECTOR sum = NAME(sum_of_sources)(of, at + u * LANES, rounds, wire, seen, &signs);
        unrounded[u] = job->division.how == GS_DIVIDE_EXACTLY ? sum * by : sum / by;
        result[u] = rounds ? NAME(round_result)(unrounded[u], signs, wire, seen) * undo : unrounded[u];
    }
    if (!rounds) {
        return !NAME(may_be_nonfinite)(result);
    }
    if (!is_suspicious(seen, wire)) {
        return true;
    }
    const bool holds = !is_beyond(seen, wire) && !NAME(is_any_smaller)(of, at, unrounded, wire);
    seen->largest = holds ? seen->largest : before.largest;
    seen->least = before.least;
    return holds;
}

INLINE void NAME(finish_step)(const NAME(buffers) * of, size_t at, const VECTOR *results, double_vector *sums) {
    for (int t = 0; t < of->target_count; t++) {
        for (size_t u = 0; u < NOTICED; u++) {
            NAME(store)(of->targets[t] + at + u * LANES, results[u], LANES);
        }
    }
    NAME(add_squares_of_step)(sums, results);
}

/* Finished in two places, so that results which hold stay in registers. */
INLINE void NAME(notice_step)(const gs_reduction *job, gs_findings *findings, const NAME(buffers) * of, size_t at,
                              bool rounds, const narrow_wire *wire, extremes *seen, double_vector *sums) {
    VECTOR result[NOTICED];
    if (NAME(try_step)(job, of, at, rounds, wire, seen, result)) {
        NAME(finish_step)(of, at, result, sums);
        return;
    }
    REAL careful[NOTICED * LANES];
    NAME(reduce_carefully)(job, findings, at, NOTICED * LANES, careful);
    for (size_t u = 0; u < NOTICED; u++) {
        result[u] = NAME(load)(careful + u * LANES, LANES);
    }
    NAME(finish_step)(of, at, result, sums);
}

INLINE size_t NAME(notice_all_steps)(const gs_reduction *job, gs_findings *findings, int sources, int targets,
                                     bool rounds, double_vector *square_sums) {
    NAME(buffers) of = {.source_count = sources, .target_count = targets};
    for (int s = 0; s < sources; s++) {
        of.sources[s] = (const REAL *)job->sources[s] + job->first;
    }
    for (int t = 0; t < targets; t++) {
        of.targets[t] = (REAL *)job->targets[t] + job->first;
    }
    narrow_wire wire = common_wire_of(job);
    wire.ceiling = source_ceiling(&wire, job);
    extremes seen = {{0}, all_f32(INFINITY)};
    double_vector sums[SQUARE_VECTORS] = {{0}};
    size_t at = 0;
    for (; at + NOTICED * LANES <= job->count; at += NOTICED * LANES) {
        NAME(notice_step)(job, findings, &of, at, rounds, &wire, &seen, sums);
    }
    take_absmax(findings, seen.largest);
    memcpy(square_sums, sums, sizeof sums);
    return at;
}

/* Returns how many elements there were in whole steps. Two ranks in place have a loop of their own. */
static size_t NAME(notice_whole_steps)(const gs_reduction *job, gs_findings *findings, double_vector *square_sums) {
    const bool rounds = ROUNDS && job->rounding.to != GS_ROUND_NOT;
    const bool is_pair = job->source_count == 2 && job->target_count == 2;
    if (rounds && is_pair) {
        return NAME(notice_all_steps)(job, findings, 2, 2, true, square_sums);
    }
    if (rounds) {
        return NAME(notice_all_steps)(job, findings, job->source_count, job->target_count, true, square_sums);
    }
    if (is_pair) {
        return NAME(notice_all_steps)(job, findings, 2, 2, false, square_sums);
    }
    return NAME(notice_all_steps)(job, findings, job->source_count, job->target_count, false, square_sums);
}

static void NAME(reduce_noticing)(const gs_reduction *job, gs_findings *findings) {
    const bool is_few = job->source_count <= SOURCES_AT_ONCE && job->target_count <= SOURCES_AT_ONCE;
    const narrow_wire wire = common_wire_of(job);
    double_vector square_sums[SQUARE_VECTORS] = {{0}};
    size_t at = 0;
    const bool keeps_signs = job->division.by > 0.0;
    if (is_few && keeps_signs && job->division.how != GS_DIVIDE_WIDE && is_wire_moderate(&wire)) {
        at = NAME(notice_whole_steps)(job, findings, square_sums);
    }
    REAL strip[STRIP];
    for (; at < job->count; at += STRIP) {
        const size_t count = job->count - at < STRIP ? job->count - at : STRIP;
        NAME(reduce_carefully)(job, findings, at, count, strip);
        for (int t = 0; t < job->target_count; t++) {
            memcpy((REAL *)job->targets[t] + job->first + at, strip, count * sizeof(REAL));
        }
        NAME(add_squares)(square_sums, strip, count);
    }
    const double sum = findings->square_sum + total_of(square_sums);
    findings->square_sum = sum == sum ? sum : (double)NAN; /* NOLINT(misc-redundant-expression) */
}
