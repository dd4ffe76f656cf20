/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Part of kernels_body.h: float32 elements as they come out of a narrow wire, in two ways. `cross` holds for every
 * element, but has none saturate and does not keep infinities apart from NaN. `round` takes half as long and holds for
 * what is no cause for doubt: see kernels_notice.h.
 */

typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));

typedef struct narrow_wire {
    int to;          /* of gs_rounding */
    float scale;     /* 1, or of HALF */
    float inverse;   /* of the scale */
    float limit;     /* the least magnitude that would become infinite */
    float saturated; /* what it becomes */
    float kept;      /* from this magnitude on, a power of two, none becomes 0 */
    float ceiling;   /* up to this one, a power of two, `round` can do them and none saturates */
    float normal;    /* the smallest normal number */
    float lift;      /* from a power of two to 1.5 times the one that has its last bit where the wire has it */
    double by;       /* the division's, but so that results have the scale of sources */
    float undo;      /* from there to their own */
} narrow_wire;

INLINE narrow_wire wire_of(gs_rounding rounding) {
    if (rounding.to == GS_ROUND_HALF) {
        const float inverse = 1.0f / rounding.scale;
        const float ceiling = 32768.0f * inverse;
        return (narrow_wire){.to = GS_ROUND_HALF,
                             .scale = rounding.scale,
                             .inverse = inverse,
                             .limit = 65520.0f * inverse,
                             .saturated = 65504.0f * inverse,
                             .kept = 0x1p-24f * inverse,
                             .ceiling = ceiling < 0x1p113f ? ceiling : 0x1p113f,
                             .normal = 0x1p-14f * inverse,
                             .lift = 0x1.8p13f};
    }
    return (narrow_wire){.to = (int)rounding.to,
                         .scale = 1.0f,
                         .inverse = 1.0f,
                         .limit = 0x1.ffp+127f,
                         .saturated = 0x1.fep+127f,
                         .kept = 0x1p-126f, /* adders may not do subnormal numbers */
                         .ceiling = 0x1p110f,
                         .normal = 0x1p-126f,
                         .lift = 0x1.8p16f};
}

INLINE narrow_wire result_wire_of(gs_rounding rounding) {
    rounding.scale = rounding.result_scale != 0.0f ? rounding.result_scale : rounding.scale;
    return wire_of(rounding);
}

/*
 * A result with a scale of its own is rounded as if it had that of the sources, to which a power of two leads. What
 * would become subnormal on the way back is left to those who take more care.
 */
static narrow_wire common_wire_of(const gs_reduction *job) {
    const gs_division division = job->division;
    narrow_wire wire = wire_of(job->rounding);
    const float ratio = result_wire_of(job->rounding).scale / wire.scale;
    const float least = ratio * 0x1p-126f;
    wire.by = division.how == GS_DIVIDE_EXACTLY ? division.by * (double)ratio : division.by / (double)ratio;
    wire.undo = 1.0f / ratio;
    wire.kept = wire.kept > least ? wire.kept : least;
    return wire;
}

/* Otherwise subnormal numbers and infinities get in the way of `round` where none is expected. */
INLINE bool is_wire_moderate(const narrow_wire *wire) {
    return wire->scale >= 0x1p-100f && wire->scale <= 0x1p100f && wire->undo >= 0x1p-100f && wire->undo <= 0x1p10f;
}

/* Below 2^-14 adding 0.5 leaves the rounding to the adder, whose unit there is the 2^-24 of subnormal halves. */
INLINE vector_f32 through_half(vector_f32 x) {
    const vector_of_bits_f32 magnitude = (vector_of_bits_f32)x & INT32_MAX;
    const vector_of_bits_f32 normal = (magnitude + 0xfff + ((magnitude >> 13) & 1)) & ~0x1fff;
    const vector_f32 subnormal = (vector_f32)magnitude + 0.5f - 0.5f;
    const vector_f32 finite = choose_f32(magnitude < 0x38800000, subnormal, (vector_f32)normal);
    const vector_f32 rounded = choose_f32(magnitude >= 0x477ff000, all_f32(INFINITY), finite);
    return (vector_f32)((vector_of_bits_f32)rounded | ((vector_of_bits_f32)x & INT32_MIN));
}

/* In integers, because the instruction for it takes subnormal numbers for 0. */
INLINE vector_f32 through_bfloat(vector_f32 x) {
    const words bits = (words)x;
    const words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const vector_f32 zero = x - x; /* NOLINT(misc-redundant-expression): or NaN, which a carry may have made anything */
    return (vector_f32)rounded - zero;
}

INLINE vector_f32 cross_f32(vector_f32 x, const narrow_wire *wire) {
    if (wire->to == GS_ROUND_HALF) {
        return through_half(x * all_f32(wire->scale)) * all_f32(wire->inverse);
    }
    return wire->to == GS_ROUND_BFLOAT ? through_bfloat(x) : x;
}

INLINE words lesser_words(words a, words b) {
#if defined(__AVX512F__)
    return (words)_mm512_min_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (words)_mm256_min_epu32((__m256i)a, (__m256i)b);
#else
    const words is_less = (words)(b < a);
    return (b & is_less) | (a & ~is_less);
#endif
}

/* Of magnitudes, which are ordered like their bits; NaN is the largest. */
INLINE vector_f32 larger_f32(vector_f32 a, vector_f32 b) {
#if defined(__AVX512F__)
    return (vector_f32)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vector_f32)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return choose_f32((vector_of_bits_f32)b > (vector_of_bits_f32)a, b, a);
#endif
}

INLINE vector_f32 lesser_f32(vector_f32 a, vector_f32 b) {
#if defined(__AVX512F__)
    return (vector_f32)_mm512_min_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vector_f32)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
    return choose_f32((vector_of_bits_f32)b < (vector_of_bits_f32)a, b, a);
#endif
}

INLINE bool is_any_negative(vector_of_bits_f32 x) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)x) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)x) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)x) != 0;
#else
    return any_f32(x < 0);
#endif
}

/* Rounded down to a power of two, because that is all that the steps below know of it. */
static void take_absmax(gs_findings *findings, vector_f32 absmax) {
    for (size_t k = 0; k < VECTOR_BYTES / sizeof(float); k++) {
        const uint32_t power = gs_float_bits(absmax[k]) & 0x7f800000u;
        const float down = power != 0 ? gs_float_from_bits(power) : absmax[k];
        findings->absmax = down > findings->absmax ? down : findings->absmax;
    }
}

/* Of magnitudes that have been seen, each rounded down to a power of two; to 0, if subnormal. */
typedef struct extremes {
    vector_f32 largest; /* of sources */
    vector_f32 least;   /* of everything that is to be rounded */
} extremes;

/* Before a result can be beyond the ceiling, a source is beyond this one. */
static float source_ceiling(const narrow_wire *wire, const gs_reduction *job) {
    const bool multiplies = job->division.how == GS_DIVIDE_EXACTLY;
    const double growth = multiplies ? job->source_count * wire->by : job->source_count / wire->by;
    int doublings;
    const bool is_power = frexp(growth, &doublings) == 0.5;
    return growth > 1.0 ? ldexpf(wire->ceiling, is_power ? 1 - doublings : -doublings) : wire->ceiling;
}

/* Nothing is wrong with zeros, but telling them from what will be flushed takes another look. */
INLINE bool is_suspicious(const extremes *seen, const narrow_wire *wire) {
    const vector_of_bits_f32 above_least = (vector_of_bits_f32)seen->least - (vector_of_bits_f32)all_f32(wire->kept);
    const vector_of_bits_f32 below_ceiling =
        (vector_of_bits_f32)all_f32(wire->ceiling) - 1 - (vector_of_bits_f32)seen->largest;
    return is_any_negative(above_least | below_ceiling);
}

INLINE bool is_beyond(const extremes *seen, const narrow_wire *wire) {
    return any_f32((vector_of_bits_f32)seen->largest >= (vector_of_bits_f32)all_f32(wire->ceiling));
}

/* The least magnitude so far. They count as their bits less 1, so that 0 comes last. */
INLINE words least_but_0_f32(words least, vector_f32 x) {
    return lesser_words(least, ((words)x & 0x7fffffffu) - 1);
}

INLINE vector_f32 power_f32(vector_f32 x) {
    return (vector_f32)((words)x & 0x7f800000u);
}

/*
 * Adding a number of the right size leaves the rounding to the adder; what becomes 0 loses its sign. `power`: of x.
 * That number is an exact product, so that one instruction may as well do both; its exponent is a sum of exponents.
 */
INLINE vector_f32 round_f32(vector_f32 x, vector_f32 power, const narrow_wire *wire) {
    const vector_f32 unit = larger_f32(power, all_f32(wire->normal));
    const vector_f32 lift = all_f32(wire->lift);
#if defined(__AVX512F__)
    const __m512 sum = _mm512_fmadd_ps((__m512)unit, (__m512)lift, (__m512)x);
    return (vector_f32)_mm512_fnmadd_ps((__m512)unit, (__m512)lift, sum);
#else
    const vector_f32 large = (vector_f32)((words)unit + ((words)lift - (words)all_f32(1.0f)));
    return (x + large) - large;
#endif
}

INLINE vector_f32 round_source_f32(vector_f32 x, const narrow_wire *wire, extremes *seen) {
    const vector_f32 power = power_f32(x);
    seen->largest = larger_f32(seen->largest, power);
    seen->least = lesser_f32(seen->least, power);
    return round_f32(x, power, wire);
}

/* Of a magnitude, or of what has that sign already unless it is 0. */
INLINE vector_f32 give_sign_f32(vector_f32 x, vector_f32 of) {
    const words sign = (words){0} + 0x80000000u;
#if defined(__AVX512F__)
    return (vector_f32)_mm512_ternarylogic_epi32((__m512i)x, (__m512i)of, (__m512i)sign, 0xf8); /* x | (of & sign) */
#else
    return (vector_f32)((words)x | ((words)of & sign));
#endif
}

/* `signs`: of all sources, those that they have in common: a sum of what became 0 has lost its sign. */
INLINE vector_f32 round_result_f32(vector_f32 x, vector_f32 signs, const narrow_wire *wire, extremes *seen) {
    const vector_f32 power = power_f32(x);
    seen->least = lesser_f32(seen->least, power);
    return give_sign_f32(round_f32(x, power, wire), (vector_f32)((words)x | (words)signs));
}

/* A half of the vector: as many elements as there are doubles in one. */
INLINE double_vector widen_part_f32(vector_f32 x, size_t part) {
#if defined(__AVX512F__)
    const __m256 of[2] = {_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1)};
    return (double_vector)_mm512_cvtps_pd(of[part]);
#elif defined(__AVX2__)
    const __m128 of[2] = {_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1)};
    return (double_vector)_mm256_cvtps_pd(of[part]);
#else
    typedef float half_vector __attribute__((vector_size(VECTOR_BYTES / 2)));
    half_vector of[2];
    memcpy(of, &x, sizeof of);
    return __builtin_convertvector(of[part], double_vector);
#endif
}

/* The square of a float is exact as a double, so that it does not matter whether it is rounded before it is added. */
INLINE double_vector add_square_f32(double_vector sum, double_vector x) {
#if defined(__AVX512F__)
    return (double_vector)_mm512_fmadd_pd((__m512d)x, (__m512d)x, (__m512d)sum);
#else
    return sum + x * x;
#endif
}
