/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 timeout=180 */

/*
 * Random models, options and misdeeds, the same sequence on all ranks: one rank does something to the others in the
 * middle of a step. Whatever it is, every rank's finish ends, in time, with a result or with a status that fits, and
 * what a failed step says about the gradients is true.
 */

#include "ranks.h"

#include <pthread.h>
#include <string.h>

enum { ROUNDS = 20, ROUNDS_BETWEEN_HOSTS = 6, TENSORS_MAX = 12, STEPS_MAX = 6 };

typedef enum misdeed {
    DESTROYS_REDUCER,
    DESTROYS_COMMUNICATOR,
    ABORTS,
    ABORTS_FROM_A_THREAD,
    STAYS_AWAY,
    IS_GOOD,
    MISDEEDS
} misdeed;

typedef struct chaos_scene {
    gsync_options options;
    size_t counts[TENSORS_MAX];
    size_t tensors;
    gsync_dtype dtype;
    int culprit;
    misdeed deed;
    uint64_t fatal_step; /* the deed is done in this one */
    size_t marks_before; /* so many marks precede it */
} chaos_scene;

static chaos_scene random_scene(const ranks_context *ctx, ranks_random *random) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_BFLOAT16};
    chaos_scene scene = {.options = GSYNC_OPTIONS_INIT, .tensors = 1 + ranks_random_below(random, TENSORS_MAX)};
    for (size_t i = 0; i < scene.tensors; i++) {
        scene.counts[i] =
            ranks_random_below(random, 4) == 0 ? ranks_random_below(random, 5000) : ranks_random_below(random, 200);
    }
    scene.dtype = dtypes[ranks_random_below(random, 3)];
    scene.options.strategy = (gsync_strategy)ranks_random_below(random, 3);
    scene.options.bucket_bytes_max = 1 + ranks_random_below(random, 4000);
    scene.options.accumulation = (gsync_accumulation)ranks_random_below(random, 2);
    scene.options.finds_unused = (int)ranks_random_below(random, 2);
    scene.options.checks_writes = (int)ranks_random_below(random, 2);
    scene.culprit = (int)ranks_random_below(random, (size_t)ctx->world);
    scene.deed = (misdeed)ranks_random_below(random, MISDEEDS);
    scene.fatal_step = ranks_random_below(random, STEPS_MAX);
    scene.marks_before = ranks_random_below(random, scene.tensors + 1);
    return scene;
}

/* What becomes of a rank's part of a scene. */
typedef struct chaos_stage {
    const chaos_scene *scene;
    gsync_comm *comm;
    ranks_model *model;
    pthread_t thread;
    bool has_thread;
    bool has_hosts; /* more than one */
} chaos_stage;

static void *abort_now(void *comm) {
    gsync_comm_abort(comm, "a thread of the culprit's");
    return NULL;
}

static void do_misdeed(chaos_stage *stage) {
    switch (stage->scene->deed) {
    case DESTROYS_REDUCER:
        gsync_reducer_destroy(&stage->model->reducer);
        break;
    case DESTROYS_COMMUNICATOR:
        gsync_comm_destroy(&stage->comm);
        break;
    case ABORTS:
        gsync_comm_abort(stage->comm, "the culprit");
        break;
    case ABORTS_FROM_A_THREAD:
        stage->has_thread = pthread_create(&stage->thread, NULL, abort_now, stage->comm) == 0;
        break;
    default:
        break;
    }
}

/* The culprit has left for good, and gives its gradients back at once: nobody may touch them any more. */
static bool has_left(const chaos_stage *stage, uint64_t step) {
    const chaos_scene *scene = stage->scene;
    return stage->model->ctx->rank == scene->culprit && step == scene->fatal_step &&
           (scene->deed == DESTROYS_REDUCER || scene->deed == DESTROYS_COMMUNICATOR || scene->deed == STAYS_AWAY);
}

static gsync_status run_step(chaos_stage *stage, uint64_t step, gsync_step_info *info) {
    const chaos_scene *scene = stage->scene;
    ranks_model *model = stage->model;
    const bool is_fatal = step == scene->fatal_step && model->ctx->rank == scene->culprit;
    ranks_model_fill(model, RANKS_INTEGERS, step);
    CHECK_OK(gsync_begin(model->reducer, GSYNC_SYNC));
    for (size_t i = 0; i < scene->tensors; i++) {
        if (is_fatal && i == scene->marks_before) {
            do_misdeed(stage);
        }
        if (has_left(stage, step) && i >= scene->marks_before) {
            return GSYNC_ERR_STATE;
        }
        CHECK_OK(ranks_model_ready(model, scene->tensors - 1 - i));
    }
    if (is_fatal && scene->marks_before == scene->tensors) {
        do_misdeed(stage);
    }
    return has_left(stage, step) ? GSYNC_ERR_STATE : gsync_finish(model->reducer, info);
}

/* A step that is helped on to its end by what was marked before the deed is a good one. */
static bool fits(const chaos_stage *stage, uint64_t step, gsync_status status) {
    const chaos_scene *scene = stage->scene;
    if (status == GSYNC_OK) {
        return true;
    }
    if (step < scene->fatal_step || scene->deed == IS_GOOD) {
        return false;
    }
    if (status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_ABORTED) {
        /* Ranks of other hosts learn of everything at their deadline, and then tell their own host. */
        return stage->has_hosts || scene->deed == STAYS_AWAY ||
               (status == GSYNC_ERR_ABORTED && (scene->deed == ABORTS || scene->deed == ABORTS_FROM_A_THREAD));
    }
    return status == GSYNC_ERR_PEER_LOST && (scene->deed == DESTROYS_REDUCER || scene->deed == DESTROYS_COMMUNICATOR);
}

static void check_gradients(const chaos_stage *stage, uint64_t step, gsync_status status, const gsync_step_info *info) {
    const ranks_model *model = stage->model;
    for (size_t i = 0; i < model->tensor_count; i++) {
        const ranks_tensor *tensor = &model->tensors[i];
        const long bucket = gsync_bucket_of(model->reducer, tensor->name);
        const ranks_source source = {.kind = RANKS_INTEGERS, .round = step, .tensor = i};
        if (tensor->count == 0) {
            continue;
        }
        if (status == GSYNC_OK || (size_t)bucket < info->buckets_reduced) {
            CHECK_REDUCED(model->ctx, tensor->grad, tensor->count, tensor->dtype, source, (double)model->ctx->world);
        } else if ((size_t)bucket > info->buckets_reduced || !info->has_torn_bucket) {
            CHECK_OWN(model->ctx, tensor->grad, tensor->count, tensor->dtype, source);
        }
    }
}

static void run_steps(chaos_stage *stage) {
    gsync_status status = GSYNC_OK;
    for (uint64_t step = 0; step < STEPS_MAX && status == GSYNC_OK; step++) {
        gsync_step_info info = GSYNC_STEP_INFO_INIT;
        status = run_step(stage, step, &info);
        if (has_left(stage, step)) {
            return;
        }
        if (!fits(stage, step, status)) {
            CHECK_OK(status);
        }
        check_gradients(stage, step, status, &info);
    }
}

static void play(ranks_context *ctx, gsync_comm *parent, const chaos_scene *scene) {
    chaos_stage stage = {.scene = scene};
    REQUIRE_OK(gsync_comm_split(parent, 0, 0, &stage.comm));
    stage.model = ranks_model_new(ctx, scene->counts, scene->tensors, scene->dtype);
    REQUIRE_OK(ranks_model_register(stage.model, stage.comm, &scene->options));
    REQUIRE_OK(gsync_reducer_commit(stage.model->reducer));
    stage.has_hosts = strstr(gsync_comm_describe(stage.comm), "on 1 host") == NULL;
    run_steps(&stage);
    if (stage.has_thread) {
        pthread_join(stage.thread, NULL);
    }
    if (scene->deed == STAYS_AWAY) {
        REQUIRE(ranks_meet(ctx)); /* the others have waited */
    }
    gsync_reducer_destroy(&stage.model->reducer);
    for (size_t i = 0; i < scene->tensors; i++) {
        ranks_memory_free(ctx, stage.model->tensors[i].grad);
    }
    gsync_comm_destroy(&stage.comm);
    REQUIRE(ranks_meet(ctx)); /* or the next scene's deadlines count from when the first rank is there */
}

static void play_all(ranks_context *ctx, gsync_comm *parent, int rounds) {
    ranks_random random = ranks_random_from(ctx->seed, 7);
    for (int round = 0; round < rounds && !ranks_has_failed(ctx); round++) {
        const chaos_scene scene = random_scene(ctx, &random);
        play(ctx, parent, &scene);
    }
}

static void every_rank_gets_out_of_every_scene(ranks_context *ctx) {
    play_all(ctx, ctx->comm, ROUNDS);
}

static void also_between_hosts(ranks_context *ctx) {
    gsync_comm *parent = NULL;
    gsync_comm_options options = ctx->comm_options;
    options.ranks_per_host = ctx->world > 2 ? 2 : 1;
    REQUIRE_OK(gsync_comm_create(&parent, &options));
    play_all(ctx, parent, ROUNDS_BETWEEN_HOSTS);
    gsync_comm_destroy(&parent);
}

RANKS_MAIN(RANKS_TEST_WITH(every_rank_gets_out_of_every_scene, .timeout_ms = 3000, .watchdog_s = 100),
           RANKS_TEST_WITH(also_between_hosts, .timeout_ms = 3000, .watchdog_s = 100, .needs_mpi = true))
