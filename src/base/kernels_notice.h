/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Part of kernels_body.h, like kernels_real.h: reductions that round on the way and notice things.
 *
 * Steps of whole vectors hold as long as everything stays finite. A step whose results do not is done over, before it
 * has been stored (targets may be the sources), by the function that also does the last few elements and the
 * reductions of many buffers: there saturated elements are found, and whose infinity it was.
 */

/* Vectors of a step: elements for whole rounds over the sums of squares. */
#define NOTICED (LANES * UNROLL < SQUARE_SUMS ? SQUARE_SUMS / LANES : (size_t)UNROLL)

static void NAME(note_absmax)(gs_findings *findings, VECTOR absmax) {
    for (size_t k = 0; k < LANES; k++) {
        findings->absmax = (float)absmax[k] > findings->absmax ? (float)absmax[k] : findings->absmax;
    }
}

INLINE VECTOR NAME(magnitude)(VECTOR x) {
    return (VECTOR)((VECTOR_OF_BITS)x & ~(VECTOR_OF_BITS)NAME(all)(-(REAL)0));
}

/* ---- everything, element by element ---- */

typedef struct NAME(tally) {
    VECTOR_OF_BITS saturated; /* counted down, because true is -1 */
    VECTOR_OF_BITS flushed;
    VECTOR absmax;
} NAME(tally);

static void NAME(add_tally)(gs_findings *findings, const NAME(tally) * tally) {
    for (size_t k = 0; k < LANES; k++) {
        findings->saturated += (uint64_t)-tally->saturated[k];
        findings->flushed += (uint64_t)-tally->flushed[k];
    }
    NAME(note_absmax)(findings, tally->absmax);
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
        tally->absmax = NAME(larger)(tally->absmax, NAME(magnitude)(finite));
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
        NAME(finish_carefully)(results + k, LANES, &wire, &tally);
    }
    NAME(finish_carefully)(results + whole, count - whole, &wire, &tally);
    if (wire.to != GS_ROUND_NOT) {
        NAME(add_tally)(findings, &tally);
    }
    if (!findings->has_nonfinite && !NAME(is_finite)(results, count)) {
        NAME(find_nonfinite)(job, findings, at, results);
    }
}

/* ---- whole steps ---- */

/* What a step sees of the numbers that it rounds. */
typedef struct NAME(extremes) {
    VECTOR largest;
    VECTOR least;
} NAME(extremes);

INLINE VECTOR NAME(take)(const REAL *x, const narrow_wire *wire, NAME(extremes) * seen) {
    const VECTOR source = NAME(load)(x, LANES);
    if (wire->to == GS_ROUND_NOT) {
        return source;
    }
    const VECTOR magnitude = NAME(magnitude)(source);
    seen->largest = NAME(larger)(seen->largest, magnitude);
    seen->least = NAME(least_of)(seen->least, magnitude);
    return NAME(cross)(source, wire);
}

INLINE VECTOR NAME(give)(VECTOR result, const narrow_wire *wire, NAME(extremes) * seen) {
    if (wire->to == GS_ROUND_NOT) {
        return result;
    }
    seen->least = NAME(least_of)(seen->least, NAME(magnitude)(result));
    return NAME(cross)(result, wire);
}

/* Whether something is not finite, or was flushed. Finite results whose sum overflows are a false alarm. */
INLINE bool NAME(has_doubt)(const VECTOR *results, const narrow_wire *wire, VECTOR least) {
    VECTOR sum = results[0];
    for (size_t u = 1; u < NOTICED; u++) {
        sum += results[u];
    }
    const VECTOR_OF_BITS nan = NAME(is_nan)(sum - sum); /* NOLINT(misc-redundant-expression) */
    return NAME(any)(wire->to == GS_ROUND_NOT ? nan : nan | NAME(is_doubtful)(least, wire));
}

INLINE void NAME(add_squares_of_step)(double_vector *sums, const VECTOR *results) {
    enum { PARTS = sizeof(double) / sizeof(REAL) }; /* of a vector: as many elements as there are doubles in one */
    for (size_t u = 0; u < NOTICED; u++) {
        for (size_t part = 0; part < PARTS; part++) {
            const double_vector wide = NAME(widen_part)(results[u], part);
            sums[(u * PARTS + part) % SQUARE_VECTORS] += wide * wide;
        }
    }
}

INLINE void NAME(notice_step)(const gs_reduction *job, gs_findings *findings, const NAME(buffers) * of, size_t at,
                              const narrow_wire *wire, VECTOR *absmax, double_vector *sums) {
    const VECTOR by = NAME(all)((REAL)job->division.by);
    NAME(extremes) seen = {*absmax, (VECTOR)((VECTOR_OF_BITS){0} - 1)};
    VECTOR result[NOTICED];
    for (size_t u = 0; u < NOTICED; u++) {
        result[u] = NAME(take)(of->sources[0] + at + u * LANES, wire, &seen);
    }
    for (int s = 1; s < of->source_count; s++) {
        for (size_t u = 0; u < NOTICED; u++) {
            result[u] += NAME(take)(of->sources[s] + at + u * LANES, wire, &seen);
        }
    }
    for (size_t u = 0; u < NOTICED; u++) {
        result[u] = job->division.how == GS_DIVIDE_EXACTLY ? result[u] * by : result[u] / by;
        result[u] = NAME(give)(result[u], wire, &seen);
    }
    if (NAME(has_doubt)(result, wire, seen.least)) {
        REAL careful[NOTICED * LANES];
        NAME(reduce_carefully)(job, findings, at, NOTICED * LANES, careful);
        for (size_t u = 0; u < NOTICED; u++) {
            result[u] = NAME(load)(careful + u * LANES, LANES);
        }
    } else {
        *absmax = seen.largest;
    }
    for (int t = 0; t < of->target_count; t++) {
        for (size_t u = 0; u < NOTICED; u++) {
            NAME(store)(of->targets[t] + at + u * LANES, result[u], LANES);
        }
    }
    NAME(add_squares_of_step)(sums, result);
}

/* Returns how many elements there were in whole steps. */
INLINE size_t NAME(notice_all_steps)(const gs_reduction *job, gs_findings *findings, int sources, int targets,
                                     gs_rounding rounding, double_vector *square_sums) {
    NAME(buffers) of = {.source_count = sources, .target_count = targets};
    for (int s = 0; s < sources; s++) {
        of.sources[s] = (const REAL *)job->sources[s] + job->first;
    }
    for (int t = 0; t < targets; t++) {
        of.targets[t] = (REAL *)job->targets[t] + job->first;
    }
    const narrow_wire wire = wire_of(rounding);
    VECTOR absmax = {0};
    double_vector sums[SQUARE_VECTORS] = {{0}};
    size_t at = 0;
    for (; at + NOTICED * LANES <= job->count; at += NOTICED * LANES) {
        NAME(notice_step)(job, findings, &of, at, &wire, &absmax, sums);
    }
    NAME(note_absmax)(findings, absmax);
    memcpy(square_sums, sums, sizeof sums);
    return at;
}

/* Two ranks in place have a loop of their own. */
INLINE size_t NAME(notice_steps)(const gs_reduction *job, gs_findings *findings, gs_rounding rounding,
                                 double_vector *square_sums) {
    if (job->source_count == 2 && job->target_count == 2) {
        return NAME(notice_all_steps)(job, findings, 2, 2, rounding, square_sums);
    }
    return NAME(notice_all_steps)(job, findings, job->source_count, job->target_count, rounding, square_sums);
}

static size_t NAME(notice_whole_steps)(const gs_reduction *job, gs_findings *findings, double_vector *square_sums) {
    switch (job->rounding.to) {
    case GS_ROUND_HALF:
        return NAME(notice_steps)(job, findings, (gs_rounding){GS_ROUND_HALF, job->rounding.scale}, square_sums);
    case GS_ROUND_BFLOAT:
        return NAME(notice_steps)(job, findings, (gs_rounding){GS_ROUND_BFLOAT, 1.0f}, square_sums);
    case GS_ROUND_NOT:
        break;
    }
    return NAME(notice_steps)(job, findings, (gs_rounding){GS_ROUND_NOT, 1.0f}, square_sums);
}

static void NAME(reduce_noticing)(const gs_reduction *job, gs_findings *findings) {
    const bool is_few = job->source_count <= SOURCES_AT_ONCE && job->target_count <= SOURCES_AT_ONCE;
    double_vector square_sums[SQUARE_VECTORS] = {{0}};
    size_t at = 0;
    if (is_few && job->division.how != GS_DIVIDE_WIDE) {
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
