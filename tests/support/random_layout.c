/* SPDX-License-Identifier: Apache-2.0 */
#include "random_layout.h"

#include <stdio.h>
#include <string.h>

/* The library moves private gradients in pieces of so many bytes: sizes that are just whole pieces are tried often. */
static const size_t PIECE_BYTES = (size_t)128 * 1024;

static bool one_in(ranks_random *random, size_t chances) {
    return ranks_random_below(random, chances) == 0;
}

/* ---- gradients ---- */

static size_t piece_elements(const layout *drawn, gsync_dtype dtype) {
    const size_t size = gsync_dtype_size(dtype);
    const bool is_widened = drawn->options.accumulation == GSYNC_CLIENT_OVERWRITES && size == 2;
    return PIECE_BYTES / (is_widened ? sizeof(float) : size);
}

/* So that `before` and it together are whole pieces, or one element more, or one less. */
static size_t draw_to_edge(ranks_random *random, size_t piece, size_t before) {
    const size_t whole = piece * (1 + ranks_random_below(random, 2)) - before % piece;
    return whole - 1 + ranks_random_below(random, 3);
}

static size_t draw_count(ranks_random *random, size_t piece, size_t before, size_t left) {
    size_t count = 0;
    switch (ranks_random_below(random, 8)) {
    case 0:
        count = ranks_random_below(random, 4);
        break;
    case 1:
        count = 64 * ranks_random_below(random, 40);
        break;
    case 2:
    case 3:
        count = left < piece ? ranks_random_below(random, 65) : draw_to_edge(random, piece, before);
        break;
    case 4:
        count = ranks_random_below(random, left + 1);
        break;
    default:
        count = ranks_random_below(random, 3000);
        break;
    }
    return count < left ? count : left;
}

static void draw_shape(ranks_random *random, layout_tensor *tensor, size_t count) {
    static const size_t short_rows[] = {1, 2, 3, 7, 16, 63};
    static const size_t long_rows[] = {64, 65, 100, 257, 1024, 5000};
    const size_t columns =
        one_in(random, 2) ? short_rows[ranks_random_below(random, 6)] : long_rows[ranks_random_below(random, 6)];
    *tensor = (layout_tensor){.rows = 1, .columns = count};
    if (count >= 2 * columns && one_in(random, 2)) {
        tensor->rows = count / columns;
        tensor->columns = columns;
    }
}

/* The first bucket starts with the gradient registered last, so sizes are drawn from there. */
static void draw_tensors(layout *drawn, ranks_random *random) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT16, GSYNC_BFLOAT16, GSYNC_FLOAT64};
    static const size_t elements_max[] = {500, 20000, 90000, 90000, 250000, 400000};
    const gsync_dtype main_dtype = dtypes[ranks_random_below(random, 4)];
    const bool has_one_dtype = !one_in(random, 3);
    size_t left = 1 + ranks_random_below(random, elements_max[ranks_random_below(random, 6)]);
    size_t before = 0;
    drawn->tensor_count = 1 + ranks_random_below(random, one_in(random, 2) ? 6 : LAYOUT_TENSORS_MAX);
    for (size_t i = drawn->tensor_count; i-- > 0;) {
        layout_tensor *tensor = &drawn->tensors[i];
        const gsync_dtype dtype = has_one_dtype ? main_dtype : dtypes[ranks_random_below(random, 4)];
        draw_shape(random, tensor, draw_count(random, piece_elements(drawn, dtype), before, left));
        tensor->dtype = dtype;
        before += layout_count(tensor);
        left -= layout_count(tensor);
    }
}

/* ---- places ---- */

typedef enum manner { KEEPS_PRIVATE, KEEPS_IN_LIBRARY, KEEPS_FLAT, KEEPS_FLAT_BACK, KEEPS_ALL_KINDS, MANNERS } manner;

static layout_place draw_place(ranks_random *random, manner kept) {
    static const layout_place kinds[] = {LAYOUT_PRIVATE, LAYOUT_PITCHED, LAYOUT_LIBRARY};
    switch (kept) {
    case KEEPS_IN_LIBRARY:
        return LAYOUT_LIBRARY;
    case KEEPS_FLAT:
        return LAYOUT_FLAT;
    case KEEPS_FLAT_BACK:
        return LAYOUT_FLAT_BACK;
    case KEEPS_ALL_KINDS:
        return kinds[ranks_random_below(random, 3)];
    default:
        return one_in(random, 3) ? LAYOUT_PITCHED : LAYOUT_PRIVATE;
    }
}

static void draw_places(layout *drawn, ranks_random *random) {
    const manner common = (manner)ranks_random_below(random, MANNERS);
    const bool is_common = one_in(random, 3);
    for (int rank = 0; rank < drawn->world; rank++) {
        const manner own = is_common ? common : (manner)ranks_random_below(random, MANNERS);
        const bool is_aligned = one_in(random, 3);
        for (size_t i = 0; i < drawn->tensor_count; i++) {
            layout_tensor *tensor = &drawn->tensors[i];
            tensor->place[rank] = draw_place(random, own);
            tensor->shift[rank] = is_aligned ? 0 : ranks_random_below(random, LAYOUT_SHIFT_MAX + 1);
            tensor->gap[rank] =
                tensor->place[rank] == LAYOUT_PITCHED ? ranks_random_below(random, LAYOUT_GAP_MAX + 1) : 0;
        }
    }
}

/* ---- the reduction ---- */

static void draw_options(layout *drawn, ranks_random *random) {
    static const size_t caps[] = {0, 0, SIZE_MAX, SIZE_MAX, 1 << 20, 1 << 18, 100000, 4096, 1};
    gsync_options *options = &drawn->options;
    *options = (gsync_options)GSYNC_OPTIONS_INIT;
    options->strategy = (gsync_strategy)ranks_random_below(random, 3);
    options->order = one_in(random, 3) ? GSYNC_ORDER_REGISTERED : GSYNC_ORDER_AGREED;
    options->bucket_bytes_max = caps[ranks_random_below(random, sizeof caps / sizeof *caps)];
    options->op = (gsync_op)ranks_random_below(random, 3); /* MEAN, SUM, WEIGHTED_MEAN */
    options->accumulation = one_in(random, 3) ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
    if (options->op == GSYNC_WEIGHTED_MEAN && options->accumulation == GSYNC_CLIENT_OVERWRITES && one_in(random, 2)) {
        options->weighting = GSYNC_WEIGHT_OF_MEANS;
    }
    if (options->op == GSYNC_MEAN) {
        options->divisor = one_in(random, 3) ? GSYNC_DIVIDE_BY_PARTICIPANTS : GSYNC_DIVIDE_BY_WORLD;
        options->averages_window = one_in(random, 4);
    }
    options->finds_unused = one_in(random, 10);
    options->checks_writes = one_in(random, 12);
}

static void draw_data(layout *drawn, ranks_random *random) {
    drawn->steps = 2 + (uint32_t)ranks_random_below(random, 2);
    drawn->micro_batches = one_in(random, 2) ? 1 : 2 + (uint32_t)ranks_random_below(random, 2);
    drawn->members = (1u << drawn->world) - 1;
    if (one_in(random, 5)) {
        drawn->members &= (uint32_t)ranks_random_next(random);
        drawn->members |= 1u << ranks_random_below(random, (size_t)drawn->world);
    }
    for (int rank = 0; rank < drawn->world; rank++) {
        for (int m = 0; m < LAYOUT_MICRO_BATCHES_MAX; m++) {
            drawn->weights[rank][m] = 0.5 * (double)(1 + ranks_random_below(random, 20));
        }
    }
}

void layout_draw(layout *drawn, uint64_t seed, int world, uint32_t ranks_per_host) {
    ranks_random random = ranks_random_from(seed, (uint64_t)world);
    memset(drawn, 0, sizeof *drawn);
    drawn->seed = seed;
    drawn->world = world;
    drawn->ranks_per_host = ranks_per_host;
    draw_options(drawn, &random);
    draw_data(drawn, &random);
    draw_tensors(drawn, &random);
    draw_places(drawn, &random);
}

void layout_describe(const layout *drawn, char *text, size_t size) {
    const gsync_options *options = &drawn->options;
    snprintf(text, size, "layout of seed %llu: %zu gradients, strategy %d, cap %zu, op %d, accumulation %d, members %x",
             (unsigned long long)drawn->seed, drawn->tensor_count, (int)options->strategy, options->bucket_bytes_max,
             (int)options->op, (int)options->accumulation, drawn->members);
}
