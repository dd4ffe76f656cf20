/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: device=long worlds=1,2,3,4,8 transports=threads,mpi timeout=120 */

/*
 * The same bits as a serial sum, for models drawn from a seed: any sizes, dtypes and options, with gradients anywhere,
 * and elsewhere on the next rank.
 *
 * CI tries a few layouts. To try many, for as long as you like, from a seed that nobody has tried:
 *
 *     GRADSYNC_TEST_LAYOUTS=5000 build/test/tests/programs/ranks.test_same_bits_random --ranks 4 --seed 1
 *     GRADSYNC_TEST_LAYOUTS=5000 scripts/mpirun.sh mpirun -n 4 build/test/tests/programs/ranks.test_same_bits_random
 *
 * What fails names its seed. That layout alone: GRADSYNC_TEST_LAYOUTS=1, --seed with this number, and --only with the
 * test.
 */

#include "random_layout.h"
#include "serial_oracle.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AROUND 0xc3 /* between and around gradients */

enum { LAYOUTS_IN_CI = 24, LAYOUTS_IN_CI_OF_FOUR = 10, LAYOUTS_IN_CI_OF_EIGHT = 4 };

typedef struct place {
    unsigned char *grad;
    unsigned char *block; /* NULL: in the library, or in the flat block */
    size_t block_bytes;
    size_t pitch;
} place;

/* One rank's part of a layout. */
typedef struct player {
    ranks_context *ctx;
    gsync_comm *comm;
    ranks_model *keeper; /* has the reducer destroyed when the test ends in the middle */
    layout *drawn;
    place places[LAYOUT_TENSORS_MAX];
    unsigned char *flat;
    size_t flat_bytes;
    unsigned char *values;
    void *scratch;
} player;

static gsync_reducer *reducer_of(const player *self) {
    return self->keeper->reducer;
}

static const layout_tensor *tensor_at(const player *self, size_t i) {
    return &self->drawn->tensors[i];
}

static size_t bytes_of(const layout_tensor *tensor) {
    return layout_count(tensor) * gsync_dtype_size(tensor->dtype);
}

/* ---- placing ---- */

static unsigned char *new_block(player *self, size_t bytes) {
    unsigned char *block = ranks_memory(self->ctx, bytes);
    memset(block, AROUND, bytes);
    return block;
}

static void place_apart(player *self, size_t i) {
    const layout_tensor *tensor = tensor_at(self, i);
    place *at = &self->places[i];
    const int rank = self->ctx->rank;
    const size_t size = gsync_dtype_size(tensor->dtype);
    *at = (place){.pitch = tensor->columns + tensor->gap[rank]};
    if (tensor->place[rank] != LAYOUT_LIBRARY) {
        at->block_bytes = (tensor->shift[rank] + tensor->rows * at->pitch) * size;
        at->block = new_block(self, at->block_bytes);
        at->grad = at->block + tensor->shift[rank] * size;
    }
}

static size_t next_multiple(size_t bytes, size_t of) {
    return (bytes + of - 1) / of * of;
}

static void place_flat(player *self, bool is_backward) {
    const size_t tensor_count = self->drawn->tensor_count;
    size_t at = tensor_at(self, 0)->shift[self->ctx->rank] * sizeof(double);
    self->flat_bytes = at + tensor_count * sizeof(double);
    for (size_t i = 0; i < tensor_count; i++) {
        self->flat_bytes += bytes_of(tensor_at(self, i));
    }
    self->flat = new_block(self, self->flat_bytes);
    for (size_t k = 0; k < tensor_count; k++) {
        const size_t i = is_backward ? tensor_count - 1 - k : k;
        at = next_multiple(at, gsync_dtype_size(tensor_at(self, i)->dtype));
        self->places[i] = (place){.grad = self->flat + at, .pitch = tensor_at(self, i)->columns};
        at += bytes_of(tensor_at(self, i));
    }
}

static void place_all(player *self) {
    const layout_place first = tensor_at(self, 0)->place[self->ctx->rank];
    self->flat = NULL;
    if (first == LAYOUT_FLAT || first == LAYOUT_FLAT_BACK) {
        place_flat(self, first == LAYOUT_FLAT_BACK);
        return;
    }
    for (size_t i = 0; i < self->drawn->tensor_count; i++) {
        place_apart(self, i);
    }
}

/* ---- the reducer ---- */

static const char *name_of(size_t i, char name[8]) {
    name[0] = 'g';
    name[1] = (char)('0' + i / 10);
    name[2] = (char)('0' + i % 10);
    name[3] = '\0';
    return name;
}

static gsync_status register_all(player *self) {
    char name[8];
    gsync_status status = gsync_reducer_create(&self->keeper->reducer, self->comm, &self->drawn->options);
    for (size_t i = 0; i < self->drawn->tensor_count && status == GSYNC_OK; i++) {
        const layout_tensor *tensor = tensor_at(self, i);
        const place *at = &self->places[i];
        status = tensor->rows == 1
                     ? gsync_reducer_add(reducer_of(self), name_of(i, name), at->grad, tensor->columns, tensor->dtype)
                     : gsync_reducer_add_matrix(reducer_of(self), name_of(i, name), at->grad, tensor->rows,
                                                tensor->columns, at->pitch, tensor->dtype);
    }
    status = status == GSYNC_OK ? gsync_reducer_commit(reducer_of(self)) : status;
    for (size_t i = 0; i < self->drawn->tensor_count && status == GSYNC_OK; i++) {
        self->places[i].grad = gsync_reducer_grad(reducer_of(self), name_of(i, name));
    }
    return status;
}

static void open_all(player *self) {
    size_t values = 1;
    size_t scratch = 1;
    for (size_t i = 0; i < self->drawn->tensor_count; i++) {
        const size_t needed = layout_scratch_bytes(self->drawn, i);
        values = values > bytes_of(tensor_at(self, i)) ? values : bytes_of(tensor_at(self, i));
        scratch = scratch > needed ? scratch : needed;
    }
    self->values = ranks_memory(self->ctx, values);
    self->scratch = ranks_memory(self->ctx, scratch);
    place_all(self);
}

static void close_all(player *self) {
    gsync_reducer_destroy(&self->keeper->reducer);
    ranks_memory_free(self->ctx, self->values);
    ranks_memory_free(self->ctx, self->scratch);
    if (self->flat != NULL) {
        ranks_memory_free(self->ctx, self->flat);
    }
    for (size_t i = 0; i < self->drawn->tensor_count; i++) {
        if (self->places[i].block != NULL) {
            ranks_memory_free(self->ctx, self->places[i].block);
        }
    }
}

/* ---- one step ---- */

static unsigned char *row_at(const player *self, size_t i, size_t row) {
    return self->places[i].grad + row * self->places[i].pitch * gsync_dtype_size(tensor_at(self, i)->dtype);
}

static void load(player *self, uint32_t step, uint32_t micro_batch) {
    for (size_t i = 0; i < self->drawn->tensor_count; i++) {
        const layout_tensor *tensor = tensor_at(self, i);
        const size_t row_bytes = tensor->columns * gsync_dtype_size(tensor->dtype);
        layout_fill(self->drawn, step, micro_batch, i, self->ctx->rank, self->values);
        for (size_t r = 0; r < tensor->rows && row_bytes != 0; r++) {
            memcpy(row_at(self, i, r), self->values + r * row_bytes, row_bytes);
        }
    }
}

/* In any order, and seldom all. A gradient without elements may have its neighbour's address. */
static gsync_status mark(player *self, ranks_random *random) {
    size_t order[LAYOUT_TENSORS_MAX];
    const size_t all = self->drawn->tensor_count;
    const size_t left_out = self->drawn->options.finds_unused ? 0 : ranks_random_below(random, all / 2 + 1);
    gsync_status status = GSYNC_OK;
    ranks_shuffle(random, order, all);
    for (size_t k = left_out; k < all && status == GSYNC_OK; k++) {
        if (layout_count(tensor_at(self, order[k])) != 0) {
            status = gsync_ready(reducer_of(self), self->places[order[k]].grad);
        }
    }
    return status;
}

static bool take_micro_batch(player *self, uint32_t step, uint32_t m, ranks_random *random) {
    const bool is_last = m + 1 == self->drawn->micro_batches;
    load(self, step, m);
    bool is_good = CHECK_OK(gsync_begin(reducer_of(self), is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE));
    is_good = is_good && CHECK_OK(gsync_set_weight(reducer_of(self), self->drawn->weights[self->ctx->rank][m]));
    is_good = is_good && CHECK_OK(mark(self, random));
    return is_good && CHECK_OK(gsync_finish(reducer_of(self), NULL));
}

static bool take_step(player *self, uint32_t step, ranks_random *random) {
    if (!layout_has_data(self->drawn, self->ctx->rank)) {
        return CHECK_OK(gsync_finish_empty(reducer_of(self), NULL));
    }
    bool is_good = true;
    for (uint32_t m = 0; m < self->drawn->micro_batches && is_good; m++) {
        is_good = take_micro_batch(self, step, m, random);
    }
    return is_good;
}

/* ---- looking ---- */

static bool check_values(player *self, uint32_t step, size_t i) {
    const layout_tensor *tensor = tensor_at(self, i);
    const size_t row_bytes = tensor->columns * gsync_dtype_size(tensor->dtype);
    char what[40] = "gradient ";
    bool is_right = true;
    name_of(i, what + strlen(what));
    layout_expect(self->drawn, step, i, self->values, self->scratch);
    for (size_t r = 0; r < tensor->rows && row_bytes != 0 && is_right; r++) {
        is_right = CHECK_BITS(tensor->dtype, row_at(self, i, r), self->values + r * row_bytes, tensor->columns, what);
    }
    return is_right;
}

static bool holds_only_around(const unsigned char *bytes, size_t count) {
    return count == 0 || (bytes[0] == AROUND && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Once the gradient's own elements are erased, its block is as it was at first. */
static bool check_around(player *self, size_t i) {
    const layout_tensor *tensor = tensor_at(self, i);
    const size_t row_bytes = tensor->columns * gsync_dtype_size(tensor->dtype);
    for (size_t r = 0; r < tensor->rows && row_bytes != 0; r++) {
        memset(row_at(self, i, r), AROUND, row_bytes);
    }
    return holds_only_around(self->places[i].block, self->places[i].block_bytes) ||
           ranks_fail(__FILE__, __LINE__, "memory around gradient %zu was written", i);
}

static bool check_all(player *self, uint32_t step) {
    bool is_right = true;
    for (size_t i = 0; i < self->drawn->tensor_count && is_right; i++) {
        is_right = check_values(self, step, i);
    }
    for (size_t i = 0; i < self->drawn->tensor_count && is_right; i++) {
        is_right = check_around(self, i);
    }
    if (is_right && self->flat != NULL && !holds_only_around(self->flat, self->flat_bytes)) {
        is_right = ranks_fail(__FILE__, __LINE__, "memory between flat gradients was written");
    }
    return CHECK_GUARDS(self->ctx) && is_right;
}

/* ---- one call, after the steps: a gradient's numbers as they are, from all ranks ---- */

static bool reduce_buffer(player *self) {
    layout *drawn = self->drawn;
    const size_t i = (size_t)(drawn->seed % drawn->tensor_count);
    const layout_tensor *tensor = tensor_at(self, i);
    const uint32_t round = drawn->steps; /* numbers that no step had */
    const size_t before = tensor->shift[self->ctx->rank] * gsync_dtype_size(tensor->dtype);
    unsigned char *block = new_block(self, before + bytes_of(tensor));
    drawn->options = (gsync_options)GSYNC_OPTIONS_INIT;
    drawn->options.op = drawn->seed / 2 % 2 == 0 ? GSYNC_MEAN : GSYNC_SUM;
    drawn->micro_batches = 1;
    drawn->members = (1u << drawn->world) - 1;
    layout_fill(drawn, round, 0, i, self->ctx->rank, block + before);
    bool is_right =
        CHECK_OK(gsync_allreduce(self->comm, block + before, layout_count(tensor), tensor->dtype, drawn->options.op));
    layout_expect(drawn, round, i, self->values, self->scratch);
    is_right = is_right && CHECK_BITS(tensor->dtype, block + before, self->values, layout_count(tensor), "allreduce");
    is_right = is_right && CHECK(holds_only_around(block, before));
    ranks_memory_free(self->ctx, block);
    return is_right;
}

/* ---- layouts ---- */

static void play(player *self, uint64_t seed, uint32_t ranks_per_host) {
    layout_draw(self->drawn, seed, self->ctx->world, ranks_per_host);
    ranks_random random = ranks_random_from(seed, 500 + (uint64_t)self->ctx->rank);
    open_all(self);
    bool is_good = CHECK_OK(register_all(self));
    for (uint32_t step = 0; step < self->drawn->steps && is_good; step++) {
        is_good = take_step(self, step, &random) && check_all(self, step);
    }
    is_good = is_good && reduce_buffer(self);
    if (!is_good) {
        char text[200];
        layout_describe(self->drawn, text, sizeof text);
        ranks_fail(__FILE__, __LINE__, "%s", text);
    }
    close_all(self);
}

static uint64_t layouts_of(const ranks_context *ctx) {
    const char *many = getenv("GRADSYNC_TEST_LAYOUTS");
    if (many != NULL) {
        return strtoull(many, NULL, 0);
    }
    if (ctx->world > 3) {
        return ctx->world > 4 ? LAYOUTS_IN_CI_OF_EIGHT : LAYOUTS_IN_CI_OF_FOUR;
    }
    return LAYOUTS_IN_CI;
}

static void play_many(ranks_context *ctx, gsync_comm *comm, uint32_t ranks_per_host) {
    player *self = ranks_memory(ctx, sizeof *self);
    memset(self, 0, sizeof *self);
    self->ctx = ctx;
    self->comm = comm;
    self->keeper = ranks_model_new(ctx, NULL, 0, GSYNC_FLOAT32);
    self->drawn = ranks_memory(ctx, sizeof *self->drawn);
    const uint64_t count = layouts_of(ctx);
    for (uint64_t i = 0; i < count && !ranks_has_failed(ctx); i++) {
        alarm(RANKS_WATCHDOG_S); /* for each layout, however many there are */
        play(self, ctx->seed + i, ranks_per_host);
    }
}

static void ranks_of_one_host(ranks_context *ctx) {
    play_many(ctx, ctx->comm, 0);
}

static void play_on_hosts(ranks_context *ctx, uint32_t ranks_per_host) {
    gsync_comm_options options = ctx->comm_options;
    gsync_comm *comm = NULL;
    options.ranks_per_host = ranks_per_host;
    REQUIRE_OK(gsync_comm_create(&comm, &options));
    play_many(ctx, comm, ranks_per_host);
    gsync_comm_destroy(&comm);
}

static void every_rank_on_a_host_of_its_own(ranks_context *ctx) {
    play_on_hosts(ctx, 1);
}

static void two_ranks_on_each_host(ranks_context *ctx) {
    play_on_hosts(ctx, 2);
}

static void three_ranks_on_the_first_host_and_fewer_on_the_last(ranks_context *ctx) {
    play_on_hosts(ctx, 3);
}

#define BOTH(claim, ...)                                                                                               \
    {.name = #claim "_with_a_helper", .body = (claim), .progress = GSYNC_PROGRESS_HELPER, __VA_ARGS__}, {              \
        .name = #claim "_without", .body = (claim), .progress = GSYNC_PROGRESS_CALLER, __VA_ARGS__                     \
    }

RANKS_MAIN(BOTH(ranks_of_one_host, .world_max = 8),
           BOTH(every_rank_on_a_host_of_its_own, .needs_mpi = true, .world_min = 2),
           BOTH(two_ranks_on_each_host, .needs_mpi = true, .world_min = 3),
           BOTH(three_ranks_on_the_first_host_and_fewer_on_the_last, .needs_mpi = true, .world_min = 4))
