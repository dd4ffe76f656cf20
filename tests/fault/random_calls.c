/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: transports=single memory=yes timeout=120 */

/*
 * Calls in any order, with any arguments that a pointer check can tell from good ones. One rank alone, so that every
 * call ends at once. No crash, no leak, no failure that is ours, and words for every other.
 */

#include "ranks.h"

#include <stdio.h>
#include <string.h>

enum { ROUNDS = 800, CALLS = 120, NAMES = 12, PLACES = 16, COUNT_MAX = 40 };

typedef struct caller {
    ranks_random random;
    gsync_comm *comm;
    gsync_reducer *reducer;
    _Alignas(16) unsigned char memory[PLACES][COUNT_MAX * sizeof(double)];
} caller;

static size_t draw(caller *player, size_t bound) {
    return ranks_random_below(&player->random, bound);
}

static bool happens(caller *player, size_t once_in) {
    return draw(player, once_in) == 0;
}

static const char *draw_name(caller *player) {
    static const char *const names[NAMES] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "", "k"};
    return happens(player, 40) ? NULL : names[draw(player, NAMES)];
}

/* Mostly a place; sometimes NULL, or one that is not aligned. */
static void *draw_place(caller *player) {
    if (happens(player, 6)) {
        return NULL;
    }
    return player->memory[draw(player, PLACES)] + (happens(player, 20) ? 1 : 0);
}

static gsync_dtype draw_dtype(caller *player) {
    return (gsync_dtype)(happens(player, 5) ? (int)draw(player, 12) - 2 : 1 + (int)draw(player, 4));
}

static void expect(const char *call, gsync_status status) {
    if (status == GSYNC_ERR_INTERNAL || status == GSYNC_ERR_TIMEOUT || status == GSYNC_ERR_TRANSPORT) {
        ranks_fail(__FILE__, __LINE__, "%s gave %s: %s", call, gsync_status_name(status), gsync_last_error());
    }
    if (status != GSYNC_OK) {
        CHECK(gsync_last_error()[0] != '\0');
    }
}

static int draw_flag(caller *player) {
    return happens(player, 30) ? (int)draw(player, 100) : (int)draw(player, 2);
}

static void create(caller *player) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.strategy = (gsync_strategy)draw(player, happens(player, 10) ? 5 : 3);
    options.order = (gsync_order)draw(player, 2);
    options.bucket_bytes_max = happens(player, 2) ? draw(player, 300) : 0;
    options.op = (gsync_op)draw(player, happens(player, 10) ? 6 : 3);
    options.accumulation = (gsync_accumulation)draw(player, 2);
    options.weighting = (gsync_weighting)(options.accumulation == 0 && !happens(player, 20) ? 0 : draw(player, 2));
    options.divisor = (gsync_divisor)draw(player, 2);
    options.averages_window = draw_flag(player);
    options.is_strict = draw_flag(player);
    options.finds_unused = options.is_strict ? 0 : draw_flag(player);
    options.checks_writes = draw_flag(player);
    gsync_reducer_destroy(&player->reducer);
    expect("create", gsync_reducer_create(&player->reducer, player->comm, &options));
}

static void add(caller *player) {
    const char *name = draw_name(player);
    void *place = draw_place(player);
    const gsync_dtype dtype = draw_dtype(player);
    if (happens(player, 4)) {
        const size_t rows = draw(player, 5);
        const size_t columns = draw(player, 6);
        const size_t pitch = happens(player, 10) ? SIZE_MAX / (1 + draw(player, 9)) : columns + draw(player, 3);
        expect("add_matrix", gsync_reducer_add_matrix(player->reducer, name, place, rows, columns, pitch, dtype));
        return;
    }
    const size_t count = happens(player, 30) ? SIZE_MAX / (1 + draw(player, 40)) : draw(player, COUNT_MAX);
    expect("add", gsync_reducer_add(player->reducer, name, place, count, dtype));
}

static void change(caller *player) {
    const char *name = draw_name(player);
    switch (draw(player, 4)) {
    case 0:
        expect("set_uses", gsync_reducer_set_uses(player->reducer, name, (uint32_t)draw(player, 4)));
        break;
    case 1:
        expect("set_trainable", gsync_reducer_set_trainable(player->reducer, name, draw_flag(player)));
        break;
    case 2:
        expect("rebind", gsync_reducer_rebind(player->reducer, name, draw_place(player)));
        break;
    default: {
        void *places[PLACES];
        for (size_t i = 0; i < PLACES; i++) {
            places[i] = draw_place(player);
        }
        expect("rebind_list", gsync_reducer_rebind_list(player->reducer, places, draw(player, PLACES)));
    }
    }
}

static void mark(caller *player) {
    const char *name = draw_name(player);
    const void *grad = happens(player, 3) ? draw_place(player) : gsync_reducer_grad(player->reducer, name);
    const void *const list[] = {grad, draw_place(player), grad};
    if (happens(player, 10)) {
        expect("ready_list", gsync_ready_list(player->reducer, happens(player, 9) ? NULL : list, draw(player, 4)));
    } else {
        expect("ready", gsync_ready(player->reducer, grad));
    }
}

static void step(caller *player) {
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    if (happens(player, 20)) {
        info.struct_size = draw(player, 300);
    }
    switch (draw(player, 6)) {
    case 0:
    case 1:
        expect("begin", gsync_begin(player->reducer, (gsync_phase)draw(player, happens(player, 20) ? 9 : 2)));
        break;
    case 2:
        expect("set_weight", gsync_set_weight(player->reducer, (double)draw(player, 5) - 0.5));
        break;
    case 3:
    case 4:
        expect("finish", gsync_finish(player->reducer, happens(player, 2) ? NULL : &info));
        break;
    default:
        expect("finish_empty", gsync_finish_empty(player->reducer, happens(player, 2) ? NULL : &info));
    }
}

static void look(caller *player) {
    const char *name = draw_name(player);
    gsync_bucket_info info = GSYNC_BUCKET_INFO_INIT;
    (void)gsync_is_synced(player->reducer);
    (void)gsync_is_used(player->reducer, name);
    (void)gsync_plan_digest(player->reducer);
    const long bucket = gsync_bucket_of(player->reducer, name);
    CHECK(bucket < (long)gsync_bucket_count(player->reducer));
    expect("bucket_get", gsync_bucket_get(player->reducer, draw(player, 4), happens(player, 9) ? NULL : &info));
    /* What the library hands out may be written, wherever the plan has put it. */
    unsigned char *grad = gsync_reducer_grad(player->reducer, name);
    if (grad != NULL && (grad < player->memory[0] || grad >= player->memory[PLACES - 1] + sizeof player->memory[0])) {
        memset(grad, 0, 1);
    }
}

static void call_anything(caller *player) {
    switch (draw(player, 12)) {
    case 0:
        expect("commit", gsync_reducer_commit(player->reducer));
        break;
    case 1:
    case 2:
        add(player);
        break;
    case 3:
        change(player);
        break;
    case 4:
        look(player);
        break;
    case 5:
    case 6:
    case 7:
        step(player);
        break;
    default:
        mark(player);
    }
    if (happens(player, 400)) {
        gsync_comm_abort(player->comm, "a draw");
    }
}

static void any_call_may_come_at_any_moment(ranks_context *ctx) {
    caller player = {.random = ranks_random_from(ctx->seed, 3)};
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.transport = GSYNC_TRANSPORT_SINGLE;
    options.timeout_ms = 5000;
    for (int round = 0; round < ROUNDS && !ranks_has_failed(ctx); round++) {
        options.progress = (gsync_progress)draw(&player, 3);
        expect("comm_create", gsync_comm_create(&player.comm, &options));
        create(&player);
        for (int i = 0; i < 4; i++) {
            add(&player);
        }
        for (int i = 0; i < CALLS && !ranks_has_failed(ctx); i++) {
            call_anything(&player);
        }
        if (happens(&player, 2)) {
            gsync_comm_destroy(&player.comm); /* the reducer is left behind */
            for (int i = 0; i < 5; i++) {
                mark(&player);
                step(&player);
            }
        }
        gsync_reducer_destroy(&player.reducer);
        gsync_comm_destroy(&player.comm);
    }
}

RANKS_MAIN(RANKS_TEST_WITH(any_call_may_come_at_any_moment, .watchdog_s = 100))
