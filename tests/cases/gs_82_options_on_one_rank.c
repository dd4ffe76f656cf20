/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,4 transports=threads,mpi timeout=60 */

/*
 * GS-82: a setting that only rank 0 has. What decides how data travels is compared at commit, and the error names it on
 * every rank; what is each rank's own business may differ. There is no choice of a codec yet.
 */

#include "own_comm.h"

#include <stddef.h>
#include <stdio.h>

typedef struct setting {
    const char *name;
    void (*set)(gsync_options *options);
    bool everywhere_overwrites; /* the setting alone would be refused without this accumulation */
} setting;

static void set_strategy(gsync_options *options) {
    options->strategy = GSYNC_STRATEGY_FIXED;
}

static void set_order(gsync_options *options) {
    options->order = GSYNC_ORDER_REGISTERED;
}

static void set_bucket_bytes_max(gsync_options *options) {
    options->bucket_bytes_max = (size_t)24 << 20;
}

static void set_bucket_bytes_first_max(gsync_options *options) {
    options->bucket_bytes_first_max = 4096;
}

static void set_op(gsync_options *options) {
    options->op = GSYNC_SUM;
}

static void set_accumulation(gsync_options *options) {
    options->accumulation = GSYNC_CLIENT_OVERWRITES;
}

static void set_weighting(gsync_options *options) {
    options->weighting = GSYNC_WEIGHT_OF_MEANS;
}

static void set_divisor(gsync_options *options) {
    options->divisor = GSYNC_DIVIDE_BY_PARTICIPANTS;
}

static void set_averages_window(gsync_options *options) {
    options->averages_window = 1;
}

static void set_is_strict(gsync_options *options) {
    options->is_strict = 1;
}

static void set_finds_unused(gsync_options *options) {
    options->finds_unused = 1;
}

static void set_checks_writes(gsync_options *options) {
    options->checks_writes = 1;
}

static void set_wire(gsync_options *options) {
    options->wire = GSYNC_WIRE_BFLOAT16;
}

static void set_checks_finite(gsync_options *options) {
    options->checks_finite = 1;
}

static void set_computes_norm(gsync_options *options) {
    options->computes_norm = 1;
}

static void set_replica_check_interval(gsync_options *options) {
    options->replica_check_interval = 7;
}

static void set_memory(gsync_options *options) {
    options->memory = GSYNC_MEMORY_HOST;
}

static void set_is_deterministic(gsync_options *options) {
    options->is_deterministic = 1;
}

static const setting settings[] = {
    {"strategy", set_strategy, false},
    {"order", set_order, false},
    {"bucket_bytes_max", set_bucket_bytes_max, false},
    {"bucket_bytes_first_max", set_bucket_bytes_first_max, false},
    {"op", set_op, false},
    {"accumulation", set_accumulation, false},
    {"weighting", set_weighting, true},
    {"divisor", set_divisor, false},
    {"averages_window", set_averages_window, false},
    {"is_strict", set_is_strict, false},
    {"finds_unused", set_finds_unused, false},
    {"checks_writes", set_checks_writes, false},
    {"wire", set_wire, false},
    {"checks_finite", set_checks_finite, false},
    {"computes_norm", set_computes_norm, false},
    {"replica_check_interval", set_replica_check_interval, false},
    {"memory", set_memory, false},
    {"is_deterministic", set_is_deterministic, false},
};
#define SETTINGS (sizeof(settings) / sizeof(settings[0]))

/* One per member after struct_size: a new option has to come here too. Members are 4 or 8 bytes, the last ends it. */
_Static_assert(offsetof(gsync_options, is_deterministic) + sizeof(int) == sizeof(gsync_options),
               "is_deterministic is last");

static const size_t counts[] = {5, 30};

static gsync_options options_of(const ranks_context *ctx, const setting *chosen, int rank_with_it) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    if (chosen->everywhere_overwrites) {
        options.accumulation = GSYNC_CLIENT_OVERWRITES;
    }
    if (ctx->rank == rank_with_it) {
        chosen->set(&options);
    }
    return options;
}

/* "option strategy is ...": the whole word, since one name begins another. */
static void check_is_named(const char *name) {
    char words[64];
    snprintf(words, sizeof(words), "option %s is", name);
    CHECK_CONTAINS(gsync_last_error(), words);
}

/* The communicator goes on: with the same options on all ranks the next reducer works. */
static void check_comm_works(ranks_context *ctx, gsync_comm *comm, uint64_t round) {
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_register(model, comm, NULL));
    REQUIRE_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, round);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, round);
    gsync_reducer_destroy(&model->reducer);
}

static void check_each_setting(ranks_context *ctx, int rank_with_it) {
    for (size_t i = 0; i < SETTINGS && !ranks_has_failed(ctx); i++) {
        const bool is_mirrors = settings[i].set == set_memory || settings[i].set == set_is_deterministic;
        if (ctx->is_on_device && is_mirrors) {
            continue; /* which sets it on all ranks */
        }
        const gsync_options options = options_of(ctx, &settings[i], rank_with_it);
        ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
        CHECK_STATUS(ranks_model_open(model, &options), GSYNC_ERR_MISMATCH);
        check_is_named(settings[i].name);
        gsync_reducer_destroy(&model->reducer);
        check_comm_works(ctx, NULL, i);
    }
}

static void GS_82_an_option_on_rank_0_only_is_named_on_every_rank(ranks_context *ctx) {
    check_each_setting(ctx, 0);
}

static void GS_82_an_option_on_the_last_rank_only_is_named_on_every_rank(ranks_context *ctx) {
    check_each_setting(ctx, ctx->world - 1);
}

/* Threads of one process get their communicators, and with them the timeout, from one call. */
static void GS_82_a_timeout_on_rank_0_only_is_named_on_every_rank(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = ctx->comm_options;
    options.timeout_ms += ctx->rank == 0 ? 1000 : 0;
    REQUIRE_OK(own_comm_create(ctx, &options, &comm));
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, comm, NULL));
    CHECK_STATUS(gsync_reducer_commit(model->reducer), GSYNC_ERR_MISMATCH);
    check_is_named("timeout_ms");
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
}

static void drop(void *user, gsync_log_level level, const char *message) {
    (void)user, (void)level, (void)message;
}

/* The log, and who moves the buckets, change nothing on the wire. */
static void GS_82_log_level_and_progress_may_differ(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = ctx->comm_options;
    if (ctx->rank == 0) {
        options.log = drop;
        options.log_level = GSYNC_LOG_TRACE;
        options.progress = GSYNC_PROGRESS_CALLER;
    }
    REQUIRE_OK(own_comm_create(ctx, &options, &comm));
    check_comm_works(ctx, comm, 1);
    gsync_comm_destroy(&comm);
}

/* Where the hosts end is agreed by all: whatever comes of it, the mean is right. */
static void GS_82_ranks_per_host_on_rank_0_only_is_harmless(ranks_context *ctx) {
    gsync_comm *comm = NULL;
    gsync_comm_options options = ctx->comm_options;
    options.ranks_per_host = ctx->rank == 0 ? 1 : 0;
    REQUIRE_OK(own_comm_create(ctx, &options, &comm));
    check_comm_works(ctx, comm, 1);
    gsync_comm_destroy(&comm);
}

/* Zero and the default that it stands for are one setting. */
static void GS_82_a_default_written_out_is_no_difference(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    if (ctx->rank == 0) {
        options.bucket_bytes_max = (size_t)25 << 20;
        options.bucket_bytes_first_max = (size_t)1 << 20;
    }
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    REQUIRE_OK(ranks_model_open(model, ctx->rank == 1 ? NULL : &options));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    REQUIRE_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
}

RANKS_MAIN(RANKS_TEST_WITH(GS_82_an_option_on_rank_0_only_is_named_on_every_rank, .world_min = 2),
           RANKS_TEST_WITH(GS_82_an_option_on_the_last_rank_only_is_named_on_every_rank, .world_min = 2),
           RANKS_TEST_WITH(GS_82_a_timeout_on_rank_0_only_is_named_on_every_rank, .needs_mpi = true,
                           .needs_no_comm = true),
           RANKS_TEST_WITH(GS_82_log_level_and_progress_may_differ, .needs_mpi = true, .needs_no_comm = true),
           RANKS_TEST_WITH(GS_82_ranks_per_host_on_rank_0_only_is_harmless, .needs_mpi = true, .needs_no_comm = true),
           RANKS_TEST(GS_82_a_default_written_out_is_no_difference))
