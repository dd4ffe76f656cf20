/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=threads links=internal
   gsync-test: wrap=strtoumax,__isoc23_strtoumax,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */

/* A rank is held up between learning where the others' memory is and mapping it, until they have given up. */

#include "ranks.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { HOLDING_UP_S = 4, TIMEOUT_MS = 1000 };

static atomic_int is_holding_up; /* the next attach takes long */
static atomic_int is_attaching;
static atomic_int has_returned; /* rank 0 is back from the call, and has freed what it does not need */

uintmax_t __real_strtoumax(const char *text, char **end, int base);
uintmax_t __wrap_strtoumax(const char *text, char **end, int base);

/* Stands where a rank that attaches reads the address. Waits until rank 0 has gone on, but at most for a while:
 * where all is well, rank 0 waits for us. */
uintmax_t __wrap_strtoumax(const char *text, char **end, int base) {
    if (atomic_exchange(&is_holding_up, 0)) {
        atomic_store(&is_attaching, 1);
        const double limit = ranks_seconds() + HOLDING_UP_S;
        while (!atomic_load(&has_returned) && ranks_seconds() < limit) {
        }
        atomic_store(&is_attaching, 0);
    }
    return __real_strtoumax(text, end, base);
}

/* Newer C libraries call it by this name. */
uintmax_t __wrap___isoc23_strtoumax(const char *text, char **end, int base);
uintmax_t __wrap___isoc23_strtoumax(const char *text, char **end, int base) {
    return __wrap_strtoumax(text, end, base);
}

static void check_return(ranks_context *ctx, gsync_status status) {
    if (ctx->rank == 0) {
        CHECK_EQ(atomic_load(&is_attaching), 0);
        atomic_store(&has_returned, 1);
        CHECK_EQ(status, GSYNC_ERR_TIMEOUT);
    } else {
        CHECK_EQ(status, GSYNC_ERR_ABORTED);
    }
}

static void hold_up(ranks_context *ctx) {
    if (ctx->rank == 0) {
        atomic_store(&has_returned, 0);
        atomic_store(&is_holding_up, 1);
    }
    REQUIRE(ranks_meet(ctx));
}

static void nobody_frees_the_buckets_of_a_rank_that_attaches_late(ranks_context *ctx) {
    const size_t counts[] = {100};
    ranks_model *model = ranks_model_new(ctx, counts, 1, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, NULL, NULL));
    hold_up(ctx);
    check_return(ctx, gsync_reducer_commit(model->reducer));
}

static void nobody_frees_the_group_of_a_rank_that_attaches_late(ranks_context *ctx) {
    gsync_comm *part = NULL;
    hold_up(ctx);
    check_return(ctx, gsync_comm_split(ctx->comm, 0, 0, &part));
    CHECK(part == NULL);
}

RANKS_MAIN(RANKS_TEST_WITH(nobody_frees_the_buckets_of_a_rank_that_attaches_late, .timeout_ms = TIMEOUT_MS),
           RANKS_TEST_WITH(nobody_frees_the_group_of_a_rank_that_attaches_late, .timeout_ms = TIMEOUT_MS))
