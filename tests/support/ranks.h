/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RANKS_H
#define RANKS_H

/*
 * Tests whose subject is several ranks. A body is written once, as what one rank does, and runs with the ranks as
 * threads of one process or as the processes of mpirun:
 *
 *     static void everybody_gets_the_mean(ranks_context *ctx) {
 *         const size_t counts[] = {3, 5};
 *         ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
 *         REQUIRE_OK(ranks_model_open(model, NULL));
 *         ranks_model_fill(model, RANKS_INTEGERS, 1);
 *         REQUIRE_OK(ranks_model_step(model, NULL, NULL));
 *         CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
 *     }
 *     RANKS_MAIN(RANKS_TEST(everybody_gets_the_mean), RANKS_TEST_WITH(needs_three, .world_min = 3))
 *
 *     program                          one rank, no launcher
 *     program --ranks 4                four threads
 *     mpirun -n 4 program              four processes
 *     RANK=.. WORLD_SIZE=4 .. program  one of four processes that know each other by torchrun's variables: where the
 *                                      program's gradients are on a GPU, tests/mirror
 *     ... [--progress helper|caller] [--ranks-per-host k] [--seed n] [--only pattern]
 *
 * The ranks agree on failures over a board of their own (ranks_board.h), not through the library under test. Each
 * test is one cmocka test, failed if a check failed on any rank; a watchdog ends a test that hangs, by name. What a
 * test obtains from this header is given back when its bodies have ended, on every path out of them; guard words are
 * looked at then.
 */

#include <gradsync/gradsync.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RANKS_WORLD_MAX 16
#define RANKS_EXCHANGE_MAX 256
#define RANKS_TIMEOUT_MS 20000 /* of the communicator; a fault shows as GSYNC_ERR_TIMEOUT and not as a hang */
#define RANKS_WATCHDOG_S 45    /* of one test; below ctest's 60, so that the report names the test */

typedef enum ranks_transport {
    RANKS_SINGLE, /* gsync_comm_create without a launcher */
    RANKS_THREADS,
    RANKS_MPI,
    RANKS_TORCHRUN /* over NCCL */
} ranks_transport;

/* What one rank's body gets. The communicator is fresh; a test may destroy it (which sets it to NULL). */
typedef struct ranks_context {
    int rank;
    int world;
    gsync_comm *comm;
    uint64_t seed;
    ranks_transport transport;
    gsync_comm_options comm_options; /* with which comm was made */
    bool is_on_device;               /* the library has the gradients on a GPU: tests/mirror */
    struct ranks_private *hidden;
} ranks_context;

/* Who waits for a GPU in vain knows for whom, unless the ranks share nothing but NCCL. */
static inline bool ranks_know_who_is_late(const ranks_context *ctx) {
    return !ctx->is_on_device || ctx->transport != RANKS_TORCHRUN;
}

typedef void (*ranks_body)(ranks_context *ctx);

/* Zero always means the default. */
typedef struct ranks_test {
    const char *name;
    ranks_body body;
    int world_min;           /* skipped below */
    int world_max;           /* skipped above */
    uint32_t timeout_ms;     /* 0: RANKS_TIMEOUT_MS */
    unsigned watchdog_s;     /* 0: RANKS_WATCHDOG_S */
    gsync_progress progress; /* 0: as the command line says */
    bool needs_threads;      /* skipped unless the ranks are threads */
    bool needs_mpi;          /* skipped unless the ranks are processes */
    bool needs_no_comm;      /* ctx->comm is NULL */
    const char *host_only;   /* why the claim is none about gradients on a GPU; skipped there with these words */
} ranks_test;

#define RANKS_TEST(function)                                                                                           \
    { .name = #function, .body = (function) }
#define RANKS_TEST_WITH(function, ...)                                                                                 \
    { .name = #function, .body = (function), __VA_ARGS__ }

/* main's result: 0 passed, 1 failed, 2 wrong usage, 77 when every test was skipped. */
int ranks_main(int argc, char **argv, const char *group, const ranks_test *tests, size_t test_count);

#define RANKS_MAIN(...)                                                                                                \
    int main(int argc, char **argv) {                                                                                  \
        static const ranks_test tests[] = {__VA_ARGS__};                                                               \
        return ranks_main(argc, argv, __FILE__, tests, sizeof(tests) / sizeof(tests[0]));                              \
    }

/* ---- Checks -------------------------------------------------------------------------------------------------- */

/*
 * A check that fails is noted with its place, this rank and the values; CHECK goes on and says whether it held,
 * REQUIRE leaves the (void) function. A rank that leaves a body with failures aborts its communicator, so that the
 * others do not wait for it. Threads that a body starts call ranks_adopt first.
 */
#define CHECK(condition) ranks_check((condition), __FILE__, __LINE__, #condition)
#define CHECK_EQ(got, expected)                                                                                        \
    ranks_check_integers((long long)(got), (long long)(expected), __FILE__, __LINE__, #got " == " #expected)
#define CHECK_REAL(got, expected) CHECK_NEAR(got, expected, 0.0)
#define CHECK_NEAR(got, expected, tolerance)                                                                           \
    ranks_check_reals((got), (expected), (tolerance), __FILE__, __LINE__, #got " == " #expected)
#define CHECK_STATUS(call, expected) ranks_check_status((call), (expected), __FILE__, __LINE__, #call)
#define CHECK_OK(call) CHECK_STATUS(call, GSYNC_OK)
#define CHECK_CONTAINS(text, part) ranks_check_contains((text), (part), __FILE__, __LINE__)

#define REQUIRE_THAT(check)                                                                                            \
    do {                                                                                                               \
        if (!(check)) {                                                                                                \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define REQUIRE(condition) REQUIRE_THAT(CHECK(condition))
#define REQUIRE_EQ(got, expected) REQUIRE_THAT(CHECK_EQ(got, expected))
#define REQUIRE_STATUS(call, expected) REQUIRE_THAT(CHECK_STATUS(call, expected))
#define REQUIRE_OK(call) REQUIRE_STATUS(call, GSYNC_OK)

/* Puts the test down as skipped, on every rank that calls it. Leaves the function. */
#define SKIP(reason)                                                                                                   \
    do {                                                                                                               \
        ranks_skip(reason);                                                                                            \
        return;                                                                                                        \
    } while (0)

bool ranks_check(bool holds, const char *file, int line, const char *claim);
bool ranks_check_integers(long long got, long long expected, const char *file, int line, const char *claim);
bool ranks_check_reals(double got, double expected, double tolerance, const char *file, int line, const char *claim);
bool ranks_check_status(gsync_status got, gsync_status expected, const char *file, int line, const char *call);
bool ranks_check_contains(const char *text, const char *part, const char *file, int line);
void ranks_skip(const char *reason);

/* A failure in words; always false. */
bool ranks_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* This rank's failures so far in this test. */
bool ranks_has_failed(const ranks_context *ctx);

/* Makes checks on the calling thread count for ctx's rank. */
void ranks_adopt(ranks_context *ctx);

/* ---- What ranks tell each other, beside the library ------------------------------------------------------------- */

/* Returns when every rank has called it; false, and a failure, when a rank left its body instead. */
bool ranks_meet(ranks_context *ctx);

/* ranks_meet that also carries bytes <= RANKS_EXCHANGE_MAX from every rank to every rank: all has world x bytes. */
bool ranks_exchange(ranks_context *ctx, const void *mine, size_t bytes, void *all);

/* Checks that every rank brought the same value. */
#define CHECK_SAME_ON_ALL(ctx, value) ranks_check_same((ctx), (uint64_t)(value), __FILE__, __LINE__, #value)
bool ranks_check_same(ranks_context *ctx, uint64_t value, const char *file, int line, const char *claim);

/* Seconds of a monotonic clock, for upper bounds ("fails long before the timeout") only. */
double ranks_seconds(void);

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/*
 * Memory of this test: 64-byte aligned, filled with a pattern that is no sensible value, with guard words directly
 * before and after. Guards are checked when the body ends, and by CHECK_GUARDS. Freed by the harness, or earlier by
 * ranks_memory_free. Never NULL; running out of memory ends the program.
 */
void *ranks_memory(ranks_context *ctx, size_t bytes);
void ranks_memory_free(ranks_context *ctx, void *memory);
#define CHECK_GUARDS(ctx) ranks_check_guards((ctx), __FILE__, __LINE__)
bool ranks_check_guards(ranks_context *ctx, const char *file, int line);

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

typedef struct ranks_random {
    uint64_t state;
} ranks_random;

ranks_random ranks_random_from(uint64_t seed, uint64_t stream);
uint64_t ranks_random_next(ranks_random *random);
size_t ranks_random_below(ranks_random *random, size_t bound);
/* order becomes a random permutation of 0 .. n - 1. */
void ranks_shuffle(ranks_random *random, size_t *order, size_t n);

typedef enum ranks_kind {
    RANKS_INTEGERS, /* within +-1023: sums are exact, so results are compared bit by bit */
    RANKS_FLOATS    /* random over 13 binades: results are compared within the rounding of the sum */
} ranks_kind;

/* What a buffer holds: every (seed, round, tensor, element, rank) has a value of its own. */
typedef struct ranks_source {
    ranks_kind kind;
    uint64_t round; /* the step, or whatever else tells two fillings apart */
    size_t tensor;
    uint32_t members; /* bit r: rank r of the world takes part; 0: all ranks */
} ranks_source;

/* The value itself, before it is rounded to a dtype. */
double ranks_value(const ranks_context *ctx, ranks_source source, int rank, size_t element);

/* Any dtype but UINT8; halves are rounded to nearest even here, not by the library. */
void ranks_store(void *buffer, gsync_dtype dtype, size_t element, double value);
double ranks_load(const void *buffer, gsync_dtype dtype, size_t element);
double ranks_rounded(gsync_dtype dtype, double value);

/* This rank's values. */
void ranks_fill(const ranks_context *ctx, void *buffer, size_t count, gsync_dtype dtype, ranks_source source);

/* The sum over all members, in float64 and rank order, of the values as their dtype holds them. */
double ranks_sum(const ranks_context *ctx, gsync_dtype dtype, ranks_source source, size_t element);

/* Checks buffer against that sum / divisor. */
#define CHECK_REDUCED(ctx, buffer, count, dtype, source, divisor)                                                      \
    ranks_check_reduced((ctx), (buffer), (count), (dtype), (source), (divisor), __FILE__, __LINE__)
bool ranks_check_reduced(const ranks_context *ctx, const void *buffer, size_t count, gsync_dtype dtype,
                         ranks_source source, double divisor, const char *file, int line);

/* Checks that buffer still holds what ranks_fill put there on this rank. */
#define CHECK_OWN(ctx, buffer, count, dtype, source)                                                                   \
    ranks_check_own((ctx), (buffer), (count), (dtype), (source), __FILE__, __LINE__)
bool ranks_check_own(const ranks_context *ctx, const void *buffer, size_t count, gsync_dtype dtype, ranks_source source,
                     const char *file, int line);

/* ---- Models: gradients p0, p1, ... and the reducer over them --------------------------------------------------------
 */

typedef struct ranks_tensor {
    char name[24];
    void *grad;
    size_t count;
    gsync_dtype dtype;
} ranks_tensor;

typedef struct ranks_model {
    ranks_context *ctx;
    gsync_reducer *reducer; /* NULL until ranks_model_register; destroyed with the test unless it was before */
    ranks_tensor *tensors;
    size_t tensor_count;
} ranks_model;

/* Guarded gradients only; counts[i] elements each. A test may change tensors before they are registered. */
ranks_model *ranks_model_new(ranks_context *ctx, const size_t *counts, size_t tensor_count, gsync_dtype dtype);

/* Creates the reducer over comm (NULL: ctx->comm) and adds all tensors in order. */
gsync_status ranks_model_register(ranks_model *model, gsync_comm *comm, const gsync_options *options);

/* ranks_model_register over ctx->comm, and the commit. */
gsync_status ranks_model_open(ranks_model *model, const gsync_options *options);

/* Fills every gradient with this rank's values of a round; the tensor's index is the source's. */
void ranks_model_fill(ranks_model *model, ranks_kind kind, uint64_t round);

/*
 * One synchronised micro-batch: begin, a mark for every tensor, finish. order lists tensor indices (NULL: from the
 * last to the first, as backward goes). The first failure is returned, but finish is always called.
 */
gsync_status ranks_model_step(ranks_model *model, const size_t *order, gsync_step_info *info);

/* Marks one tensor. */
gsync_status ranks_model_ready(ranks_model *model, size_t tensor);

/* Checks every gradient of the model against the sum over all ranks / divisor. */
#define CHECK_MODEL(model, kind, round, divisor)                                                                       \
    ranks_model_check((model), (kind), (round), (divisor), __FILE__, __LINE__)
#define CHECK_MODEL_MEAN(model, kind, round) CHECK_MODEL(model, kind, round, (double)(model)->ctx->world)
#define CHECK_MODEL_OWN(model, kind, round) ranks_model_check_own((model), (kind), (round), __FILE__, __LINE__)
bool ranks_model_check(const ranks_model *model, ranks_kind kind, uint64_t round, double divisor, const char *file,
                       int line);
bool ranks_model_check_own(const ranks_model *model, ranks_kind kind, uint64_t round, const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
