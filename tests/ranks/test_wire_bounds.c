/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=no (it starts more ranks of its own than there are devices)
   gsync-test: worlds=1 transports=single timeout=120 */

/*
 * How far a narrow wire's result may be from the exact one, element by element, for 2 to 64 ranks and for values of
 * all kinds. The ranks are threads that this test starts itself: they are more than the harness knows.
 */

#include "sanitized.h"
#include "wire_reference.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

enum { WORLD_MAX = 64, BLOCK = 256, GRADIENTS = 3 };

static const int worlds[] = {2, 3, 4, 8, WORLD_MAX};
enum { WORLDS = sizeof worlds / sizeof *worlds };

typedef struct trial {
    ranks_context *ctx;
    int world;
    gsync_op op;
    gsync_wire wire;
    bool is_stochastic;
    size_t counts[GRADIENTS];
    size_t total;              /* elements of all gradients */
    float *inputs[WORLD_MAX];  /* of all gradients, one behind the other */
    float *results[WORLD_MAX]; /* likewise */
    gsync_comm *comms[WORLD_MAX];
    gsync_status statuses[WORLD_MAX];
    gsync_step_info info; /* rank 0's, of the last step */
} trial;

static trial *trial_new(ranks_context *ctx, int world, const size_t *counts) {
    trial *made = ranks_memory(ctx, sizeof *made);
    *made = (trial){.ctx = ctx, .world = world, .op = GSYNC_MEAN};
    for (size_t g = 0; g < GRADIENTS; g++) {
        made->counts[g] = counts[g];
        made->total += counts[g];
    }
    for (int rank = 0; rank < world; rank++) {
        made->inputs[rank] = ranks_memory(ctx, made->total * sizeof(float));
        made->results[rank] = ranks_memory(ctx, made->total * sizeof(float));
    }
    return made;
}

static void trial_free(trial *old) {
    for (int rank = 0; rank < old->world; rank++) {
        ranks_memory_free(old->ctx, old->inputs[rank]);
        ranks_memory_free(old->ctx, old->results[rank]);
    }
    ranks_memory_free(old->ctx, old);
}

/* ---- One rank ---------------------------------------------------------------------------------------------------- */

static gsync_status make_reducer(trial *of, int rank, gsync_reducer **reducer) {
    static const char *const names[GRADIENTS] = {"a", "b", "c"};
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_wire_options wire_options = GSYNC_WIRE_OPTIONS_INIT;
    options.op = of->op;
    options.checks_finite = 1;
    wire_options.elements_min = 1;
    wire_options.is_stochastic = of->is_stochastic;
    wire_options.feedback = GSYNC_FEEDBACK_OFF;
    gsync_status status = gsync_reducer_create(reducer, of->comms[rank], &options);
    size_t first = 0;
    for (size_t g = 0; g < GRADIENTS && status == GSYNC_OK; g++) {
        status = gsync_reducer_add(*reducer, names[g], of->results[rank] + first, of->counts[g], GSYNC_FLOAT32);
        first += of->counts[g];
    }
    if (status == GSYNC_OK) {
        status = gsync_reducer_set_wire(*reducer, NULL, of->wire, &wire_options);
    }
    return status == GSYNC_OK ? gsync_reducer_commit(*reducer) : status;
}

/* Float16 twice: its first step only measures. */
static gsync_status take_steps(trial *of, int rank, gsync_reducer *reducer) {
    gsync_status status = GSYNC_OK;
    for (int left = of->wire == GSYNC_WIRE_FLOAT16 ? 2 : 1; left > 0 && status == GSYNC_OK; left--) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        memcpy(of->results[rank], of->inputs[rank], of->total * sizeof(float));
        status = gsync_begin(reducer, GSYNC_SYNC);
        status = status == GSYNC_OK ? gsync_finish(reducer, &info) : status;
        if (rank == 0) {
            of->info = info;
        }
    }
    return status;
}

typedef struct rank_thread {
    trial *of;
    int rank;
    pthread_t thread;
} rank_thread;

static void *be_a_rank(void *argument) {
    const rank_thread *self = argument;
    gsync_reducer *reducer = NULL;
    gsync_status status = make_reducer(self->of, self->rank, &reducer);
    status = status == GSYNC_OK ? take_steps(self->of, self->rank, reducer) : status;
    self->of->statuses[self->rank] = status;
    if (status != GSYNC_OK) {
        gsync_comm_abort(self->of->comms[self->rank], gsync_last_error());
    }
    gsync_reducer_destroy(&reducer);
    return NULL;
}

/* Every rank has the same bits afterwards, or a check fails. */
static bool run(trial *of) {
    rank_thread threads[WORLD_MAX];
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.progress = GSYNC_PROGRESS_CALLER;
    options.timeout_ms = 60000;
    if (!CHECK_OK(gsync_comm_threads(of->comms, of->world, &options))) {
        return false;
    }
    for (int rank = 0; rank < of->world; rank++) {
        threads[rank] = (rank_thread){.of = of, .rank = rank};
        CHECK_EQ(pthread_create(&threads[rank].thread, NULL, be_a_rank, &threads[rank]), 0);
    }
    bool is_right = true;
    for (int rank = 0; rank < of->world; rank++) {
        CHECK_EQ(pthread_join(threads[rank].thread, NULL), 0);
        is_right = CHECK_OK(of->statuses[rank]) && is_right;
    }
    for (int rank = 0; rank < of->world; rank++) {
        gsync_comm_destroy(&of->comms[rank]);
        is_right = is_right && CHECK(memcmp(of->results[rank], of->results[0], of->total * sizeof(float)) == 0);
    }
    return is_right;
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

typedef struct exact {
    double sum;
    double magnitudes; /* the sum of them */
} exact;

static exact exact_at(const trial *of, size_t element) {
    exact at = {0, 0};
    for (int rank = 0; rank < of->world; rank++) {
        at.sum += (double)of->inputs[rank][element];
        at.magnitudes += fabs((double)of->inputs[rank][element]);
    }
    return at;
}

/* Elements [first, end) are the block that holds the element. */
typedef struct stretch {
    size_t first;
    size_t end;
} stretch;

static stretch block_of(const trial *of, size_t element) {
    size_t start = 0;
    size_t g = 0;
    while (element >= start + of->counts[g]) {
        start += of->counts[g++];
    }
    const size_t first = start + (element - start) / BLOCK * BLOCK;
    const size_t end = start + of->counts[g];
    return (stretch){first, first + BLOCK < end ? first + BLOCK : end};
}

static double absmax_of(const float *x, stretch block) {
    double most = 0;
    for (size_t k = block.first; k < block.end; k++) {
        most = fmax(most, fabs((double)x[k]));
    }
    return most;
}

static double absmax_of_sums(const trial *of, stretch block) {
    double most = 0;
    for (size_t k = block.first; k < block.end; k++) {
        most = fmax(most, fabs(exact_at(of, k).sum));
    }
    return most;
}

#define U32 0x1p-24
#define U16 0x1p-11
#define UB 0x1p-8
#define U8 0x1p-4
#define LEAST 0x1p-149 /* float32's smallest step, which every operation may lose half of */

static double float16_bound(const trial *of, exact at, double divisor, double scale) {
    const double n = of->world;
    const double contributions =
        U16 * at.magnitudes + U16 * U16 * at.magnitudes + n * U32 * at.magnitudes * (1 + U16) * (1 + U16);
    return (contributions + n * 0x1p-25 / scale) / divisor + U16 * fabs(at.sum) / divisor + 0x1p-25 / scale;
}

static double bfloat16_bound(const trial *of, exact at, double divisor) {
    const double n = of->world;
    const double subnormal = 0x1p-134;
    const double contributions =
        UB * at.magnitudes + UB * UB * at.magnitudes + n * U32 * at.magnitudes * (1 + UB) * (1 + UB);
    return (contributions + n * subnormal) / divisor + UB * fabs(at.sum) / divisor + subnormal;
}

/* One quantisation loses absmax / 254 and a little, since codes are products and not quotients. */
static double int8_bound(const trial *of, exact at, double divisor, stretch block) {
    const double once = (1 + 0x1p-14) / 254;
    double contributions = 0;
    for (int rank = 0; rank < of->world; rank++) {
        contributions += absmax_of(of->inputs[rank], block) * once * (of->is_stochastic ? 2 : 1) + LEAST;
    }
    const double result = absmax_of_sums(of, block) + contributions;
    const double slop = 2 * (of->world + 4) * U32 * (at.magnitudes + result);
    return (contributions + result * once + slop) / divisor;
}

static double float8_step(double absmax) {
    int exponent = -127;
    while (absmax > ldexp(448.0, exponent)) {
        exponent++;
    }
    return ldexp(1.0, exponent - 10);
}

static double float8_bound(const trial *of, exact at, double divisor, stretch block) {
    double steps = 0;
    double largest = absmax_of_sums(of, block);
    for (int rank = 0; rank < of->world; rank++) {
        steps += float8_step(absmax_of(of->inputs[rank], block));
        largest += U8 * absmax_of(of->inputs[rank], block);
    }
    const double contributions = U8 * at.magnitudes + steps + of->world * U32 * at.magnitudes * 1.2;
    return (contributions + U8 * (fabs(at.sum) + contributions)) / divisor + float8_step((largest + steps) / divisor);
}

static double bound_at(const trial *of, exact at, double divisor, double scale, size_t element) {
    switch (of->wire) {
    case GSYNC_WIRE_FLOAT16:
        return float16_bound(of, at, divisor, scale);
    case GSYNC_WIRE_BFLOAT16:
        return bfloat16_bound(of, at, divisor);
    case GSYNC_WIRE_INT8:
        return int8_bound(of, at, divisor, block_of(of, element));
    case GSYNC_WIRE_FLOAT8:
        return float8_bound(of, at, divisor, block_of(of, element));
    case GSYNC_WIRE_NATIVE:
    case GSYNC_WIRE_TOPK:
        break;
    }
    return of->world * U32 * (1 + of->world * U32) * at.magnitudes / divisor;
}

static float absmax_of_inputs(const trial *of) {
    double most = 0;
    for (int rank = 0; rank < of->world; rank++) {
        most = fmax(most, absmax_of(of->inputs[rank], (stretch){0, of->total}));
    }
    return (float)most;
}

/* The largest error, in bounds. */
static double worst_of(const trial *of, const float *results) {
    const double divisor = of->op == GSYNC_MEAN ? of->world : 1;
    const double scale = (double)wire_half_scale(absmax_of_inputs(of), of->world);
    double worst = 0;
    for (size_t k = 0; k < of->total; k++) {
        const exact at = exact_at(of, k);
        const double error = fabs((double)results[k] - at.sum / divisor);
        const double bound =
            bound_at(of, at, divisor, scale, k) + U32 * fabs(at.sum) / divisor + (of->world + 3) * LEAST;
        worst = isfinite(results[k]) ? fmax(worst, error / bound) : INFINITY;
    }
    return worst;
}

/* Squared error against the square of what was wanted. */
static double nmse_of(const trial *of, const float *results, double divisor) {
    double errors = 0;
    double squares = 0;
    for (size_t k = 0; k < of->total; k++) {
        const double wanted = exact_at(of, k).sum / divisor;
        errors += ((double)results[k] - wanted) * ((double)results[k] - wanted);
        squares += wanted * wanted;
    }
    return errors / squares;
}

static void fill(trial *of, wire_values_kind kind) {
    for (int rank = 0; rank < of->world; rank++) {
        wire_values(kind, oracle_key(of->ctx, (uint64_t)kind, 5), rank, of->inputs[rank], of->total);
    }
}

static void try_kinds(ranks_context *ctx, gsync_wire wire, bool is_stochastic) {
    static const size_t counts[GRADIENTS] = {1, 777, 255};
    for (size_t w = 0; w < WORLDS && !ranks_has_failed(ctx); w++) {
        for (int kind = WIRE_GAUSSIAN; kind <= WIRE_MIXED && !ranks_has_failed(ctx); kind++) {
            if (worlds[w] == WORLD_MAX && SANITIZED && kind != WIRE_GAUSSIAN) {
                continue;
            }
            trial *of = trial_new(ctx, worlds[w], counts);
            of->wire = wire;
            of->is_stochastic = is_stochastic;
            of->op = kind % 2 == 0 ? GSYNC_MEAN : GSYNC_SUM;
            fill(of, (wire_values_kind)kind);
            if (run(of)) {
                const double worst = worst_of(of, of->results[0]);
                if (!(worst <= 1)) {
                    ranks_fail(__FILE__, __LINE__, "wire %d, %d ranks, values %d: %g bounds", (int)wire, of->world,
                               kind, worst);
                }
                CHECK(worst > 0.1 || kind != WIRE_GAUSSIAN || of->world > 4); /* the bound is no idle one */
                CHECK_EQ(of->info.values_saturated, 0);
                CHECK_EQ(of->info.found_inf, 0);
            }
            trial_free(of);
        }
    }
}

static void float16_is_within_its_bound(ranks_context *ctx) {
    try_kinds(ctx, GSYNC_WIRE_FLOAT16, false);
}

static void bfloat16_is_within_its_bound(ranks_context *ctx) {
    try_kinds(ctx, GSYNC_WIRE_BFLOAT16, false);
}

static void int8_to_nearest_is_within_its_bound(ranks_context *ctx) {
    try_kinds(ctx, GSYNC_WIRE_INT8, false);
}

static void int8_at_random_is_within_its_bound(ranks_context *ctx) {
    try_kinds(ctx, GSYNC_WIRE_INT8, true);
}

static void float8_is_within_its_bound(ranks_context *ctx) {
    try_kinds(ctx, GSYNC_WIRE_FLOAT8, false);
}

static void the_native_wire_is_within_its_bound(ranks_context *ctx) {
    try_kinds(ctx, GSYNC_WIRE_NATIVE, false);
}

/* ---- Top-k ------------------------------------------------------------------------------------------------------- */

/* Density 0.1, the default: what is lost of each rank's vector is at most its (1 - k/d)th part, squared. */
static void what_top_k_leaves_out_is_within_its_bound(ranks_context *ctx) {
    static const size_t counts[GRADIENTS] = {1000, 200, 10};
    for (size_t w = 0; w < WORLDS - (SANITIZED ? 1 : 0) && !ranks_has_failed(ctx); w++) {
        trial *of = trial_new(ctx, worlds[w], counts);
        of->wire = GSYNC_WIRE_TOPK;
        of->op = GSYNC_SUM;
        fill(of, WIRE_HEAVY_TAILED);
        if (run(of)) {
            double lost = 0;
            double allowed = 0;
            size_t sent = 0;
            for (size_t k = 0; k < of->total; k++) {
                const double error = (double)of->results[0][k] - exact_at(of, k).sum;
                lost += error * error;
                sent += of->results[0][k] != 0.0f;
            }
            for (int rank = 0; rank < of->world; rank++) {
                double square = 0;
                for (size_t k = 0; k < of->total; k++) {
                    square += (double)of->inputs[rank][k] * (double)of->inputs[rank][k];
                }
                allowed += sqrt((1 - 0.1) * square);
            }
            CHECK(sqrt(lost) <= allowed);
            CHECK(sent <= (size_t)of->world * 121 && sent >= 121);
        }
        trial_free(of);
    }
}

/* The others have zeros, so that what arrives is what one rank sent: its 100, 20 and 1 largest, as they were. */
static void exactly_k_elements_arrive_as_they_were(ranks_context *ctx) {
    static const size_t counts[GRADIENTS] = {1000, 200, 10};
    static const size_t kept[GRADIENTS] = {100, 20, 1};
    trial *of = trial_new(ctx, 3, counts);
    of->wire = GSYNC_WIRE_TOPK;
    of->op = GSYNC_SUM;
    fill(of, WIRE_GAUSSIAN);
    memset(of->inputs[0], 0, of->total * sizeof(float));
    memset(of->inputs[2], 0, of->total * sizeof(float));
    REQUIRE(run(of));
    for (size_t g = 0, first = 0; g < GRADIENTS; first += counts[g++]) {
        size_t sent = 0;
        float least = FLT_MAX;
        float most_left = 0;
        for (size_t k = first; k < first + counts[g]; k++) {
            const float result = of->results[0][k];
            sent += result != 0.0f;
            CHECK(result == 0.0f || result == of->inputs[1][k]);
            least = result != 0.0f ? fminf(least, fabsf(result)) : least;
            most_left = result == 0.0f ? fmaxf(most_left, fabsf(of->inputs[1][k])) : most_left;
        }
        CHECK_EQ(sent, kept[g]);
        CHECK(most_left <= least);
    }
}

/* ---- Gates and controls -------------------------------------------------------------------------------------------
 */

static double gate_of(ranks_context *ctx, int world, gsync_wire wire, bool is_stochastic) {
    static const size_t counts[GRADIENTS] = {8192, 3000, 1};
    trial *of = trial_new(ctx, world, counts);
    of->wire = wire;
    of->is_stochastic = is_stochastic;
    fill(of, WIRE_GAUSSIAN);
    const double nmse = run(of) ? nmse_of(of, of->results[0], world) : INFINITY;
    trial_free(of);
    return nmse;
}

static void eight_gaussian_ranks_pass_the_gates(ranks_context *ctx) {
    CHECK(gate_of(ctx, 8, GSYNC_WIRE_FLOAT16, false) <= 1e-7);
    CHECK(gate_of(ctx, 8, GSYNC_WIRE_BFLOAT16, false) <= 6e-6);
    CHECK(gate_of(ctx, 8, GSYNC_WIRE_INT8, false) <= 1.2e-4);
    CHECK(gate_of(ctx, 8, GSYNC_WIRE_INT8, true) <= 1.7e-4);
    CHECK(gate_of(ctx, 8, GSYNC_WIRE_FLOAT8, false) <= 1.6e-3);
}

/* The sum is rounded again with every rank that is added, as a ring in the wire's type does it. */
static void sum_by_hops(const trial *of, float *sums) {
    memcpy(sums, of->inputs[0], of->total * sizeof *sums);
    for (int rank = 1; rank < of->world; rank++) {
        wire_round(of->wire, 1.0f, sums, of->total);
        for (size_t k = 0; k < of->total; k++) {
            sums[k] += of->inputs[rank][k];
        }
    }
    wire_round(of->wire, 1.0f, sums, of->total);
}

static void rounding_at_every_hop_would_not_pass(ranks_context *ctx) {
    static const size_t counts[GRADIENTS] = {4096, 256, 256};
    const gsync_wire wires[] = {GSYNC_WIRE_INT8, GSYNC_WIRE_FLOAT8, GSYNC_WIRE_BFLOAT16};
    for (size_t i = 0; i < 3; i++) {
        trial *of = trial_new(ctx, WORLD_MAX, counts);
        float *sums = ranks_memory(ctx, of->total * sizeof *sums);
        of->wire = wires[i];
        of->op = GSYNC_SUM;
        fill(of, WIRE_GAUSSIAN);
        if (run(of)) {
            sum_by_hops(of, sums);
            CHECK(nmse_of(of, sums, 1) > 5 * nmse_of(of, of->results[0], 1));
        }
        trial_free(of);
    }
}

/* The bound is about this way of adding and no other: hops of bfloat16 break it. */
static void hops_break_the_bound(ranks_context *ctx) {
    static const size_t counts[GRADIENTS] = {4096, 256, 256};
    trial *of = trial_new(ctx, WORLD_MAX, counts);
    float *sums = ranks_memory(ctx, of->total * sizeof *sums);
    of->wire = GSYNC_WIRE_BFLOAT16;
    of->op = GSYNC_SUM;
    fill(of, WIRE_CONSTANT);
    sum_by_hops(of, sums);
    CHECK(worst_of(of, sums) > 1);
}

static void a_sum_in_half_overflows_where_the_wire_does_not(ranks_context *ctx) {
    static const size_t counts[GRADIENTS] = {100, 7, 1};
    trial *of = trial_new(ctx, WORLD_MAX, counts);
    of->wire = GSYNC_WIRE_FLOAT16;
    of->op = GSYNC_SUM;
    for (int rank = 0; rank < of->world; rank++) {
        for (size_t k = 0; k < of->total; k++) {
            of->inputs[rank][k] = 2000.0f + (float)k;
        }
    }
    REQUIRE(run(of));
    CHECK(worst_of(of, of->results[0]) <= 1);
    uint16_t sum = 0;
    for (int rank = 0; rank < of->world; rank++) {
        sum = oracle_narrowed(GSYNC_FLOAT16, (float)ranks_load(&sum, GSYNC_FLOAT16, 0) + of->inputs[rank][0]);
    }
    CHECK(isinf(ranks_load(&sum, GSYNC_FLOAT16, 0)));
}

RANKS_MAIN(RANKS_TEST(the_native_wire_is_within_its_bound), RANKS_TEST(float16_is_within_its_bound),
           RANKS_TEST(bfloat16_is_within_its_bound), RANKS_TEST(int8_to_nearest_is_within_its_bound),
           RANKS_TEST(int8_at_random_is_within_its_bound), RANKS_TEST(float8_is_within_its_bound),
           RANKS_TEST(what_top_k_leaves_out_is_within_its_bound), RANKS_TEST(exactly_k_elements_arrive_as_they_were),
           RANKS_TEST(eight_gaussian_ranks_pass_the_gates), RANKS_TEST(rounding_at_every_hop_would_not_pass),
           RANKS_TEST(hops_break_the_bound), RANKS_TEST(a_sum_in_half_overflows_where_the_wire_does_not))
