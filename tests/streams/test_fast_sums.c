/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: timeout=120 */

/* GSYNC_WIRE_SUM_FAST: how wrong a sum may be that NCCL makes in 16 bits, rank by rank, what it still has to be, and
 * where it cannot be had. */

#include "device_pair.h"

#include <math.h>

enum { ELEMENTS = 1201, FIRST = 700, STEPS = 2 };

typedef struct trial {
    gsync_dtype dtype;
    gsync_wire wire;
    gsync_wire_sum sum;
    gsync_op op;
    int ranks;
    double inputs[RANKS_MAX][ELEMENTS]; /* as they are in memory */
    double results[RANKS_MAX][ELEMENTS];
    unsigned char bits[RANKS_MAX][ELEMENTS * sizeof(float)];
    gsync_step_info info[RANKS_MAX]; /* of the last step */
    char found[RANKS_MAX];           /* the first letter of its found_inf_gradient */
    gsync_comm *comms[RANKS_MAX];
} trial;

static double load(const void *from, size_t index, gsync_dtype dtype) {
    if (dtype == GSYNC_FLOAT32) {
        return (double)((const float *)from)[index];
    }
    const uint16_t bits = ((const uint16_t *)from)[index];
    if (dtype == GSYNC_BFLOAT16) {
        const uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return (double)value;
    }
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 1023;
    const double size = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                        : exponent == 0 ? ldexp(fraction, -24)
                                        : ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

/* store() knows no infinite halves. */
static void put(void *to, size_t index, gsync_dtype dtype, double value) {
    if (dtype == GSYNC_FLOAT16 && !isfinite(value)) {
        ((uint16_t *)to)[index] = isnan(value) ? 0x7e00 : 0x7c00;
        return;
    }
    store(to, index, dtype, value);
}

/* ---- a rank ---- */

static void register_all(const trial *t, gsync_reducer *reducer, char *memory) {
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    options.sum = t->sum;
    options.elements_min = 1;
    CHECK_STATUS(gsync_reducer_add(reducer, "a", memory, FIRST, t->dtype), GSYNC_OK, "");
    CHECK_STATUS(
        gsync_reducer_add(reducer, "b", memory + FIRST * gsync_dtype_size(t->dtype), ELEMENTS - FIRST, t->dtype),
        GSYNC_OK, "");
    CHECK_STATUS(gsync_reducer_set_wire(reducer, NULL, t->wire, &options), GSYNC_OK, "");
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_OK, "");
}

/* FLOAT16's first step only measures. */
static void take_step(trial *t, int rank, gsync_reducer *reducer, char *memory, void *pinned, cudaStream_t stream) {
    const size_t bytes = ELEMENTS * gsync_dtype_size(t->dtype);
    for (size_t k = 0; k < ELEMENTS; k++) {
        put(pinned, k, t->dtype, t->inputs[rank][k]);
        t->inputs[rank][k] = load(pinned, k, t->dtype);
    }
    t->info[rank] = (gsync_step_info)GSYNC_STEP_INFO_INIT;
    CHECK_STATUS(gsync_begin(reducer, GSYNC_SYNC), GSYNC_OK, "");
    OK(cudaMemcpyAsync(memory, pinned, bytes, cudaMemcpyDefault, stream));
    CHECK_STATUS(gsync_ready_on(reducer, memory + FIRST * gsync_dtype_size(t->dtype), stream), GSYNC_OK, "");
    CHECK_STATUS(gsync_ready_on(reducer, memory, stream), GSYNC_OK, "");
    CHECK_STATUS(gsync_finish(reducer, &t->info[rank]), GSYNC_OK, "");
    t->found[rank] = t->info[rank].found_inf_gradient != NULL ? t->info[rank].found_inf_gradient[0] : '-';
    OK(cudaMemcpyAsync(pinned, memory, bytes, cudaMemcpyDefault, stream));
    OK(cudaStreamSynchronize(stream));
    memcpy(t->bits[rank], pinned, bytes);
    for (size_t k = 0; k < ELEMENTS; k++) {
        t->results[rank][k] = load(pinned, k, t->dtype);
    }
}

static void run_rank(int rank, int ranks, void *context) {
    trial *t = context;
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_reducer *reducer = NULL;
    char *memory;
    void *pinned;
    cudaStream_t stream;
    (void)ranks;
    options.op = t->op;
    options.checks_finite = 1;
    OK(cudaMalloc((void **)&memory, ELEMENTS * sizeof(float)));
    OK(cudaMallocHost(&pinned, ELEMENTS * sizeof(float)));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_STATUS(gsync_reducer_create(&reducer, t->comms[rank], &options), GSYNC_OK, "");
    register_all(t, reducer, memory);
    for (int step = 0; step < STEPS; step++) {
        take_step(t, rank, reducer, memory, pinned, stream);
    }
    gsync_reducer_destroy(&reducer);
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(memory));
    gsync_comm_destroy(&t->comms[rank]);
}

static void run(trial *t) {
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(t->comms, t->ranks, NULL), GSYNC_OK);
    run_rank_threads(t->ranks, run_rank, t);
    print_reports();
    assert_int_equal(simcuda_reports(NULL, 0), 0);
    for (int rank = 1; rank < t->ranks; rank++) {
        assert_memory_equal(t->bits[rank], t->bits[0], ELEMENTS * gsync_dtype_size(t->dtype));
    }
}

/* ---- bounds ---- */

static bool is_half(const trial *t) {
    return t->wire == GSYNC_WIRE_FLOAT16 || (t->wire == GSYNC_WIRE_NATIVE && t->dtype == GSYNC_FLOAT16);
}

static double unit_of(const trial *t) {
    return is_half(t) ? 0x1p-11 : 0x1p-8;
}

/* Half of the smallest step of the wire, in units of the gradients. */
static double least_of(const trial *t) {
    double most = 0;
    int magnitude;
    int ranks;
    for (int rank = 0; rank < t->ranks; rank++) {
        for (size_t k = 0; k < ELEMENTS; k++) {
            most = fmax(most, fabs(t->inputs[rank][k]));
        }
    }
    (void)frexp(most, &magnitude);
    (void)frexp(t->ranks, &ranks);
    if (!is_half(t)) {
        return 0x1p-134;
    }
    return t->wire == GSYNC_WIRE_NATIVE ? 0x1p-25 : ldexp(0x1p-25, magnitude + ranks - 11);
}

typedef struct exact {
    double sum;
    double magnitudes;
} exact;

static exact exact_at(const trial *t, size_t k) {
    exact at = {0, 0};
    for (int rank = 0; rank < t->ranks; rank++) {
        at.sum += t->inputs[rank][k];
        at.magnitudes += fabs(t->inputs[rank][k]);
    }
    return at;
}

/* Of the result, which is a sum divided by so much. A narrow one is a float32 by then. */
typedef double bound_function(const trial *t, exact at, double least, double divisor);

/* A rounding for each rank: of the contribution and of every sum. A gradient of 16 bits is rounded no more often: its
 * contribution is as it was, and its mean is rounded. */
static double fast_bound(const trial *t, exact at, double least, double divisor) {
    const double u = unit_of(t);
    const bool is_native = t->wire == GSYNC_WIRE_NATIVE;
    const double sum = (pow(1 + u, is_native ? t->ranks - 1 : t->ranks) - 1) * at.magnitudes + 2 * t->ranks * least;
    const double last = divisor == 1 ? 0 : (is_native ? u : 0x1p-24);
    return sum / divisor + last * (fabs(at.sum) + sum) / divisor + (last == u ? least : 0);
}

static double direct_bound(const trial *t, exact at, double least, double divisor) {
    const double u = unit_of(t);
    const double added = t->ranks * 0x1p-24 * at.magnitudes * (1 + u) * (1 + u);
    const double contributed = t->wire == GSYNC_WIRE_NATIVE ? 0 : (u + u * u) * at.magnitudes + t->ranks * least;
    return (contributed + added + u * fabs(at.sum)) / divisor + least;
}

/* The largest error, in bounds. */
static double worst_of(const trial *t, bound_function *bound_of) {
    const double divisor = t->op == GSYNC_MEAN ? t->ranks : 1;
    const double least = least_of(t);
    double worst = 0;
    for (size_t k = 0; k < ELEMENTS; k++) {
        const exact at = exact_at(t, k);
        const double error = fabs(t->results[0][k] - at.sum / divisor);
        worst = fmax(worst, error / bound_of(t, at, least, divisor));
    }
    return worst;
}

/* In every second element one rank has a large number, and what the others add to it is less than half a step. */
static void fill(trial *t) {
    for (int rank = 0; rank < t->ranks; rank++) {
        for (size_t k = 0; k < ELEMENTS; k++) {
            const double random = (double)(mix((uint64_t)rank * 100003 + k) % 2000003) / 1000001.0 - 1.0;
            const double large = is_half(t) ? 2048 : 256;
            const double small = 0.9 + 0.01 * random;
            const bool is_large = k / 2 % (size_t)t->ranks == (size_t)rank;
            t->inputs[rank][k] = k % 2 == 0 ? random * ldexp(1, (int)(k % 12) - 6) : (is_large ? large : small);
        }
    }
}

static const struct {
    gsync_dtype dtype;
    gsync_wire wire;
} ways[] = {{GSYNC_FLOAT32, GSYNC_WIRE_FLOAT16},
            {GSYNC_FLOAT32, GSYNC_WIRE_BFLOAT16},
            {GSYNC_FLOAT16, GSYNC_WIRE_NATIVE},
            {GSYNC_BFLOAT16, GSYNC_WIRE_NATIVE}};
enum { WAYS = sizeof ways / sizeof *ways };

static trial *new_trial(size_t way, int ranks) {
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->dtype = ways[way].dtype;
    t->wire = ways[way].wire;
    t->sum = GSYNC_WIRE_SUM_FAST;
    t->op = ranks == 2 ? GSYNC_SUM : GSYNC_MEAN;
    t->ranks = ranks;
    return t;
}

static void errors_grow_with_the_ranks_and_not_beyond(void **state) {
    (void)state;
    static const int worlds[] = {2, 3, 4, 8};
    for (size_t way = 0; way < WAYS; way++) {
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
            trial *t = new_trial(way, worlds[w]);
            fill(t);
            run(t);
            const double fast = worst_of(t, fast_bound);
            const double as_direct = worst_of(t, direct_bound);
            t->sum = GSYNC_WIRE_SUM_DIRECT;
            run(t);
            const double direct = worst_of(t, direct_bound);
            if (!(fast <= 1 && fast > 0.1 && direct <= 1 && (as_direct > 1 || worlds[w] < 4))) {
                fail_msg("way %zu, %d ranks: %g bounds, %g of those of direct sums, which had %g", way, worlds[w], fast,
                         as_direct, direct);
            }
            free(t);
        }
    }
}

/* ---- inf and NaN ---- */

static void check_found(size_t way, double value, int ranks_with_it, int wanted_rank) {
    trial *t = new_trial(way, 4);
    t->op = GSYNC_MEAN;
    for (int rank = 0; rank < t->ranks; rank++) {
        for (size_t k = 0; k < ELEMENTS; k++) {
            t->inputs[rank][k] = k == 800 && rank >= t->ranks - ranks_with_it ? value : 1.0 + rank;
        }
    }
    run(t);
    for (int rank = 0; rank < t->ranks; rank++) {
        assert_int_equal(t->info[rank].found_inf, 1);
        assert_int_equal(t->info[rank].found_inf_rank, wanted_rank);
        assert_int_equal(t->found[rank], 'b');
        assert_false(isfinite(t->results[rank][800]));
    }
    free(t);
}

static void what_is_not_finite_is_found_on_all_ranks(void **state) {
    (void)state;
    for (size_t way = 0; way < WAYS; way++) {
        check_found(way, (double)INFINITY, 1, 3);
        check_found(way, (double)NAN, 2, 2);
    }
    check_found(2, 60000, 2, -1); /* finite, and beyond float16 when added up */
}

/* ---- where it can be had ---- */

typedef struct asked {
    gsync_wire wire;
    int sum;
    gsync_feedback feedback;
    int is_deterministic;
    const char *words;
} asked;

static void ask(gsync_comm *comm, const asked *what) {
    static float memory[COUNT];
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_wire_options wire_options = GSYNC_WIRE_OPTIONS_INIT;
    gsync_reducer *reducer = NULL;
    options.is_deterministic = what->is_deterministic;
    wire_options.sum = (gsync_wire_sum)what->sum;
    wire_options.feedback = what->feedback;
    assert_int_equal(gsync_reducer_create(&reducer, comm, &options), GSYNC_OK);
    assert_int_equal(gsync_reducer_add(reducer, "a", memory, COUNT, GSYNC_FLOAT32), GSYNC_OK);
    CHECK_STATUS(gsync_reducer_set_wire(reducer, NULL, what->wire, &wire_options), GSYNC_ERR_ARGUMENT, what->words);
    gsync_reducer_destroy(&reducer);
}

static void nonsense_is_refused_by_name(void **state) {
    (void)state;
    static const asked nonsense[] = {
        {GSYNC_WIRE_FLOAT16, 2, GSYNC_FEEDBACK_AUTO, 0, "sum is 2"},
        {GSYNC_WIRE_NATIVE, -1, GSYNC_FEEDBACK_AUTO, 0, "sum is -1"},
        {GSYNC_WIRE_INT8, 1, GSYNC_FEEDBACK_AUTO, 0, "int8"},
        {GSYNC_WIRE_FLOAT8, 1, GSYNC_FEEDBACK_AUTO, 0, "float8"},
        {GSYNC_WIRE_TOPK, 1, GSYNC_FEEDBACK_OFF, 0, "top-k"},
        {GSYNC_WIRE_BFLOAT16, 1, GSYNC_FEEDBACK_ON, 0, "feedback"},
        {GSYNC_WIRE_BFLOAT16, 1, GSYNC_FEEDBACK_AUTO, 1, "is_deterministic"},
    };
    gsync_comm *comms[2];
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(comms, 2, NULL), GSYNC_OK);
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        ask(comms[0], &nonsense[i]);
    }
    gsync_comm_destroy(&comms[0]);
    gsync_comm_destroy(&comms[1]);
    assert_int_equal(atomic_exchange(&rank_failures, 0), 0);
}

typedef struct crew {
    gsync_comm *comms[RANKS_MAX];
} crew;

static gsync_status commit_with(const crew *c, int rank, void *memory, gsync_wire wire, size_t struct_size,
                                gsync_wire_sum sum) {
    gsync_reducer *reducer = NULL;
    gsync_wire_options options = GSYNC_WIRE_OPTIONS_INIT;
    options.struct_size = struct_size;
    options.elements_min = 1;
    options.sum = sum;
    CHECK_STATUS(gsync_reducer_create(&reducer, c->comms[rank], NULL), GSYNC_OK, "");
    CHECK_STATUS(gsync_reducer_add(reducer, "a", memory, COUNT, GSYNC_BFLOAT16), GSYNC_OK, "");
    CHECK_STATUS(gsync_reducer_set_wire(reducer, NULL, wire, &options), GSYNC_OK, "");
    const gsync_status status = gsync_reducer_commit(reducer);
    gsync_reducer_destroy(&reducer);
    return status;
}

static void commit_in_all_ways(int rank, int ranks, void *context) {
    crew *c = context;
    const gsync_wire_sum fast = GSYNC_WIRE_SUM_FAST;
    const gsync_wire_sum other = rank == 1 ? fast : GSYNC_WIRE_SUM_DIRECT;
    const size_t size = sizeof(gsync_wire_options);
    const size_t shorter = offsetof(gsync_wire_options, sum);
    uint16_t on_host[COUNT] = {0};
    void *memory;
    (void)ranks;
    OK(cudaMalloc(&memory, sizeof on_host));
    CHECK_STATUS(commit_with(c, rank, on_host, GSYNC_WIRE_NATIVE, size, fast), GSYNC_ERR_UNSUPPORTED, "'a'");
    CHECK_STATUS(commit_with(c, rank, on_host, GSYNC_WIRE_FLOAT16, size, fast), GSYNC_ERR_UNSUPPORTED, "on the host");
    CHECK_STATUS(commit_with(c, rank, memory, GSYNC_WIRE_NATIVE, size, other), GSYNC_ERR_MISMATCH, "wire_options");
    CHECK_STATUS(commit_with(c, rank, memory, GSYNC_WIRE_FLOAT16, size, other), GSYNC_ERR_MISMATCH, "wire_options");
    /* A gradient of the wire's own type travels as it is, and is added up like one that asks for no wire. */
    CHECK_STATUS(commit_with(c, rank, memory, rank == 1 ? GSYNC_WIRE_NATIVE : GSYNC_WIRE_BFLOAT16, size, fast),
                 GSYNC_OK, "");
    /* A trainer that was compiled before there was a choice. */
    CHECK_STATUS(commit_with(c, rank, memory, GSYNC_WIRE_FLOAT16, rank == 1 ? shorter : size, GSYNC_WIRE_SUM_DIRECT),
                 GSYNC_OK, "");
    CHECK_STATUS(commit_with(c, rank, on_host, GSYNC_WIRE_FLOAT16, shorter, fast), GSYNC_OK, "");
    OK(cudaFree(memory));
    gsync_comm_destroy(&c->comms[rank]);
}

static void ranks_agree_and_hosts_refuse(void **state) {
    (void)state;
    crew c;
    simcuda_reset();
    assert_int_equal(gsync_comm_threads(c.comms, 2, NULL), GSYNC_OK);
    run_rank_threads(2, commit_in_all_ways, &c);
    assert_int_equal(simcuda_reports(NULL, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_grow_with_the_ranks_and_not_beyond),
        cmocka_unit_test(what_is_not_finite_is_found_on_all_ranks),
        cmocka_unit_test(nonsense_is_refused_by_name),
        cmocka_unit_test(ranks_agree_and_hosts_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
