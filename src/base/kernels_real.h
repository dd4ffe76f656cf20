/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Part of kernels_body.h, which includes it once for float and once for double: REAL, an integer BITS of its size, the
 * SUFFIX of names, and the bits of ONE_NAN and INFINITE.
 */

typedef REAL VECTOR __attribute__((vector_size(VECTOR_BYTES)));
typedef BITS VECTOR_OF_BITS __attribute__((vector_size(VECTOR_BYTES)));

/* Memory is aligned to elements only, and the last elements do not fill a vector. */
INLINE VECTOR NAME(load)(const REAL *x, size_t lanes) {
    VECTOR vector = {0};
    memcpy(&vector, x, lanes * sizeof(REAL));
    return vector;
}

INLINE void NAME(store)(REAL *x, VECTOR vector, size_t lanes) {
    memcpy(x, &vector, lanes * sizeof(REAL));
}

INLINE VECTOR NAME(all)(REAL value) {
    return value - (VECTOR){0}; /* minus, because -0 plus 0 is 0 */
}

INLINE VECTOR NAME(choose)(VECTOR_OF_BITS mask, VECTOR yes, VECTOR no) {
    return (VECTOR)((mask & (VECTOR_OF_BITS)yes) | (~mask & (VECTOR_OF_BITS)no));
}

INLINE VECTOR_OF_BITS NAME(is_nan)(VECTOR x) {
    return x != x; /* NOLINT(misc-redundant-expression): it is NaN that differs from itself */
}

INLINE bool NAME(any)(VECTOR_OF_BITS mask) {
    return is_any_set((bit_vector)mask);
}

/*
 * NaNs are looked for in results that are still in registers, and replaced afterwards in memory, which hardly ever has
 * to be. The vectors of a step are added up to be looked at once; infinities that cancel each other are a false alarm.
 */
INLINE VECTOR_OF_BITS NAME(find_nan)(const VECTOR *results, size_t vectors) {
    VECTOR sum = results[0];
    for (size_t u = 1; u < vectors; u++) {
        sum += results[u];
    }
    return NAME(is_nan)(sum);
}

static void NAME(make_one_nan)(REAL *x, size_t count) {
    for (size_t k = 0; k < count; k += LANES) {
        const size_t lanes = count - k < LANES ? count - k : LANES;
        const VECTOR from = NAME(load)(x + k, lanes);
        const VECTOR to = NAME(choose)(NAME(is_nan)(from), (VECTOR)((VECTOR_OF_BITS){0} + ONE_NAN), from);
        NAME(store)(x + k, to, lanes);
    }
}

/* ---- to = operation(a, b) ---- */

typedef VECTOR (*NAME(operation))(VECTOR a, VECTOR b, VECTOR scalar);

INLINE VECTOR NAME(sum_of)(VECTOR a, VECTOR b, VECTOR scalar) {
    (void)scalar;
    return a + b;
}

INLINE VECTOR NAME(lesser_of)(VECTOR a, VECTOR b, VECTOR scalar) {
    (void)scalar;
    return NAME(choose)((b < a) | NAME(is_nan)(b), b, a);
}

INLINE VECTOR NAME(greater_of)(VECTOR a, VECTOR b, VECTOR scalar) {
    (void)scalar;
    return NAME(choose)((b > a) | NAME(is_nan)(b), b, a);
}

INLINE VECTOR NAME(multiple_of)(VECTOR a, VECTOR b, VECTOR factor) {
    (void)b;
    return a * factor;
}

INLINE VECTOR NAME(quotient_of)(VECTOR a, VECTOR b, VECTOR divisor) {
    (void)b;
    return a / divisor;
}

INLINE VECTOR NAME(sum_with_multiple_of)(VECTOR a, VECTOR b, VECTOR factor) {
    return a + b * factor;
}

/* A step's vectors are all loaded before any is stored, so `to` may be a or b. Returns where there may be NaN. */
INLINE VECTOR_OF_BITS NAME(map_step)(REAL *to, const REAL *a, const REAL *b, VECTOR scalar, size_t vectors,
                                     size_t lanes, NAME(operation) operation) {
    VECTOR result[UNROLL];
    for (size_t u = 0; u < vectors; u++) {
        result[u] = operation(NAME(load)(a + u * LANES, lanes), NAME(load)(b + u * LANES, lanes), scalar);
    }
    for (size_t u = 0; u < vectors; u++) {
        NAME(store)(to + u * LANES, result[u], lanes);
    }
    return NAME(find_nan)(result, vectors);
}

INLINE bool NAME(map)(REAL *to, const REAL *a, const REAL *b, REAL scalar, size_t count, NAME(operation) operation) {
    const VECTOR s = NAME(all)(scalar);
    VECTOR_OF_BITS nan = {0};
    size_t k = 0;
    for (; k + UNROLL * LANES <= count; k += UNROLL * LANES) {
        nan |= NAME(map_step)(to + k, a + k, b + k, s, UNROLL, LANES, operation);
    }
    for (; k < count; k += LANES) {
        const size_t lanes = count - k < LANES ? count - k : LANES;
        nan |= NAME(map_step)(to + k, a + k, b + k, s, 1, lanes, operation);
    }
    return NAME(any)(nan);
}

INLINE void NAME(compute)(REAL *to, const REAL *a, const REAL *b, REAL scalar, size_t count,
                          NAME(operation) operation) {
    if (NAME(map)(to, a, b, scalar, count, operation)) {
        NAME(make_one_nan)(to, count);
    }
}

static void NAME(add)(REAL *sum, const REAL *x, size_t count) {
    NAME(compute)(sum, sum, x, 0, count, NAME(sum_of));
}

static void NAME(min)(REAL *least, const REAL *x, size_t count) {
    (void)NAME(map)(least, least, x, 0, count, NAME(lesser_of));
}

static void NAME(max)(REAL *most, const REAL *x, size_t count) {
    (void)NAME(map)(most, most, x, 0, count, NAME(greater_of));
}

static void NAME(scale)(REAL *to, const REAL *x, REAL factor, size_t count) {
    NAME(compute)(to, x, x, factor, count, NAME(multiple_of));
}

static void NAME(accumulate)(REAL *to, const REAL *sum, const REAL *x, REAL factor, size_t count) {
    NAME(compute)(to, sum, x, factor, count, NAME(sum_with_multiple_of));
}

static void NAME(divide)(REAL *x, gs_division by, size_t count) {
    switch (by.how) {
    case GS_DIVIDE_EXACTLY:
        NAME(compute)(x, x, x, (REAL)by.by, count, NAME(multiple_of));
        break;
    case GS_DIVIDE_NARROW:
        NAME(compute)(x, x, x, (REAL)by.by, count, NAME(quotient_of));
        break;
    case GS_DIVIDE_WIDE:
        for (size_t k = 0; k < count; k++) {
            x[k] = (REAL)((double)x[k] / by.by);
        }
        NAME(make_one_nan)(x, count);
        break;
    }
}

/* ---- reductions ---- */

/* The buffers of a reduction. Where their numbers are constants the compiler keeps all of this in registers. */
typedef struct NAME(buffers) {
    const REAL *sources[SOURCES_AT_ONCE];
    REAL *targets[SOURCES_AT_ONCE];
    int source_count;
    int target_count;
} NAME(buffers);

INLINE VECTOR NAME(same)(VECTOR a, VECTOR b, VECTOR scalar) {
    (void)b, (void)scalar;
    return a;
}

/* One step of UNROLL vectors at most, the last one not full unless lanes == LANES. Returns where there may be NaN. */
INLINE VECTOR_OF_BITS NAME(reduce_step)(const NAME(buffers) * of, size_t at, size_t vectors, size_t lanes, VECTOR by,
                                        NAME(operation) finish) {
    VECTOR sum[UNROLL];
    for (size_t u = 0; u < vectors; u++) {
        sum[u] = NAME(load)(of->sources[0] + at + u * LANES, lanes);
    }
    for (int s = 1; s < of->source_count; s++) {
        for (size_t u = 0; u < vectors; u++) {
            sum[u] += NAME(load)(of->sources[s] + at + u * LANES, lanes);
        }
    }
    for (size_t u = 0; u < vectors; u++) {
        sum[u] = finish(sum[u], sum[u], by);
    }
    for (int t = 0; t < of->target_count; t++) {
        for (size_t u = 0; u < vectors; u++) {
            NAME(store)(of->targets[t] + at + u * LANES, sum[u], lanes);
        }
    }
    return NAME(find_nan)(sum, vectors);
}

INLINE void NAME(reduce_all_steps)(const gs_reduction *job, int sources, int targets, NAME(operation) finish) {
    NAME(buffers) of = {.source_count = sources, .target_count = targets};
    for (int s = 0; s < sources; s++) {
        of.sources[s] = (const REAL *)job->sources[s] + job->first;
    }
    for (int t = 0; t < targets; t++) {
        of.targets[t] = (REAL *)job->targets[t] + job->first;
    }
    const VECTOR by = NAME(all)((REAL)job->division.by);
    const size_t end = job->count;
    VECTOR_OF_BITS nan = {0};
    size_t at = 0;
    for (; at + UNROLL * LANES <= end; at += UNROLL * LANES) {
        nan |= NAME(reduce_step)(&of, at, UNROLL, LANES, by, finish);
    }
    for (; at < end; at += LANES) {
        nan |= NAME(reduce_step)(&of, at, 1, end - at < LANES ? end - at : LANES, by, finish);
    }
    const int to_mend = NAME(any)(nan) ? targets : 0;
    for (int t = 0; t < to_mend; t++) {
        NAME(make_one_nan)(of.targets[t], end);
    }
}

/* The commonest numbers of buffers have loops of their own: all ranks' buffers in place, or their sum in one. */
INLINE void NAME(reduce_with)(const gs_reduction *job, NAME(operation) finish) {
    const int sources = job->source_count;
    const int targets = job->target_count;
    if (sources == 2 && targets == 2) {
        NAME(reduce_all_steps)(job, 2, 2, finish);
    } else if (sources == 4 && targets == 4) {
        NAME(reduce_all_steps)(job, 4, 4, finish);
    } else if (sources == 3 && targets == 3) {
        NAME(reduce_all_steps)(job, 3, 3, finish);
    } else if (sources == 2 && targets == 1) {
        NAME(reduce_all_steps)(job, 2, 1, finish);
    } else if (sources == 1 && targets == 1) {
        NAME(reduce_all_steps)(job, 1, 1, finish);
    } else {
        NAME(reduce_all_steps)(job, sources, targets, finish);
    }
}

/* At most SOURCES_AT_ONCE of both. */
static void NAME(reduce_at_once)(const gs_reduction *job) {
    if (job->division.how != GS_DIVIDE_EXACTLY) {
        NAME(reduce_with)(job, NAME(quotient_of));
    } else if (job->division.by == 1.0) {
        NAME(reduce_with)(job, NAME(same));
    } else {
        NAME(reduce_with)(job, NAME(multiple_of));
    }
}

/* strip = the sum of all sources, a few of them at a time */
static void NAME(sum_strip)(REAL *strip, const gs_reduction *job, size_t first, size_t count) {
    void *const target = strip;
    const void *sources[SOURCES_AT_ONCE];
    int held = 0; /* of `sources`: once there is a sum, it is the first */
    for (int s = 0; s < job->source_count; s++) {
        sources[held++] = (const REAL *)job->sources[s] + first;
        if (held == SOURCES_AT_ONCE || s + 1 == job->source_count) {
            NAME(reduce_at_once)
            (&(gs_reduction){.sources = sources,
                             .source_count = held,
                             .targets = &target,
                             .target_count = 1,
                             .division = {GS_DIVIDE_EXACTLY, 1.0},
                             .count = count});
            sources[0] = strip;
            held = 1;
        }
    }
}

/* Without rounding, and without looking for anything. */
static void NAME(reduce_only)(const gs_reduction *job) {
    const bool is_few = job->source_count <= SOURCES_AT_ONCE && job->target_count <= SOURCES_AT_ONCE;
    if (is_few && job->division.how != GS_DIVIDE_WIDE) {
        NAME(reduce_at_once)(job);
        return;
    }
    REAL strip[STRIP];
    for (size_t done = 0; done < job->count; done += STRIP) {
        const size_t first = job->first + done;
        const size_t count = job->count - done < STRIP ? job->count - done : STRIP;
        NAME(sum_strip)(strip, job, first, count);
        NAME(divide)(strip, job->division, count);
        for (int t = 0; t < job->target_count; t++) {
            memcpy((REAL *)job->targets[t] + first, strip, count * sizeof(REAL));
        }
    }
}

/* ---- what is asked about elements ---- */

/* As many elements as a vector of doubles holds, squared in float64: exactly, if they are float32. */
INLINE double_vector NAME(squares)(const REAL *x) {
    enum { COUNT = VECTOR_BYTES / sizeof(double) };
    typedef REAL few __attribute__((vector_size(COUNT * sizeof(REAL))));
    few values;
    memcpy(&values, x, sizeof values);
    const double_vector wide = __builtin_convertvector(values, double_vector);
    return wide * wide;
}

/* Adds to the SQUARE_SUMS; count is a multiple of their number unless it is the last. */
INLINE void NAME(add_squares)(double_vector *sums, const REAL *x, size_t count) {
    enum { COUNT = VECTOR_BYTES / sizeof(double) };
    for (size_t k = 0; k < count; k += SQUARE_SUMS) {
        REAL last[SQUARE_SUMS] = {0};
        const REAL *from = x + k;
        if (count - k < SQUARE_SUMS) {
            memcpy(last, from, (count - k) * sizeof(REAL));
            from = last;
        }
        for (size_t v = 0; v < SQUARE_VECTORS; v++) {
            sums[v] += NAME(squares)(from + v * COUNT);
        }
    }
}

static double NAME(square_sum)(const REAL *x, size_t count) {
    double_vector sums[SQUARE_VECTORS] = {{0}};
    NAME(add_squares)(sums, x, count);
    return total_of(sums);
}

static bool NAME(is_finite)(const REAL *x, size_t count) {
    const VECTOR_OF_BITS infinite = (VECTOR_OF_BITS){0} + INFINITE;
    VECTOR_OF_BITS found = {0};
    for (size_t k = 0; k < count; k += LANES) {
        const size_t lanes = count - k < LANES ? count - k : LANES;
        found |= ((VECTOR_OF_BITS)NAME(load)(x + k, lanes) & infinite) == infinite;
    }
    return !NAME(any)(found);
}
