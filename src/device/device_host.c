/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device_host.h"

#include "base/convert.h"
#include "base/hash.h"
#include "base/kernels.h"

#include <assert.h>
#include <string.h>

static unsigned char *row_of(const gs_tensor *tensor, size_t row) {
    return (unsigned char *)tensor->data + row * tensor->row_pitch * gsync_dtype_size(tensor->dtype);
}

/* A dense tensor is one long row. */
static gs_tensor as_rows(const gs_tensor *tensor) {
    gs_tensor rows = *tensor;
    if (gs_tensor_is_dense(tensor)) {
        rows.columns = gs_tensor_count(tensor);
        rows.rows = rows.columns == 0 ? 0 : 1;
        rows.row_pitch = rows.columns;
    }
    return rows;
}

/* to = factor * from, plus what was accumulated; elements of the wide dtype, `first` elements into the accumulator. */
static void weigh(void *to, const void *from, const gs_host_term *term, size_t first, size_t count) {
    const gs_kernels *const kernels = gs_kernels_best();
    if (gs_dtype_wide(term->tensor->dtype) == GSYNC_FLOAT64) {
        if (term->accumulator == NULL) {
            kernels->scale_f64(to, from, term->factor, count);
        } else {
            kernels->accumulate_f64(to, (const double *)term->accumulator + first, from, term->factor, count);
        }
    } else if (term->accumulator == NULL) {
        kernels->scale_f32(to, from, (float)term->factor, count);
    } else {
        kernels->accumulate_f32(to, (const float *)term->accumulator + first, from, (float)term->factor, count);
    }
}

static size_t block_length(size_t total, size_t done) {
    return total - done < GS_BLOCK ? total - done : GS_BLOCK;
}

/* ---- gather ---- */

static void gather_row(unsigned char *wire, gsync_dtype wire_dtype, const gs_host_term *term, const void *row,
                       size_t first, size_t columns) {
    const gsync_dtype dtype = term->tensor->dtype;
    const bool is_weighed = term->factor != 1.0 || term->accumulator != NULL;
    if (is_weighed && dtype == wire_dtype && dtype == gs_dtype_wide(dtype)) {
        weigh(wire, row, term, first, columns);
        return;
    }
    gs_wide_block wide;
    for (size_t done = 0; done < columns; done += GS_BLOCK) {
        const size_t count = block_length(columns, done);
        gs_widen(&wide, (const unsigned char *)row + done * gsync_dtype_size(dtype), dtype, count);
        if (is_weighed) {
            weigh(&wide, &wide, term, first + done, count);
        }
        gs_wide_convert(&wide, gs_dtype_wide(dtype), gs_dtype_wide(wire_dtype), count);
        gs_narrow(wire + done * gsync_dtype_size(wire_dtype), &wide, wire_dtype, count);
    }
}

static void gather_tensor(unsigned char *wire, gsync_dtype wire_dtype, const gs_host_term *term) {
    const gs_tensor rows = as_rows(term->tensor);
    const bool is_plain = term->accumulator == NULL && term->factor == 1.0 && rows.dtype == wire_dtype;
    const size_t row_bytes = rows.columns * gsync_dtype_size(wire_dtype);
    for (size_t r = 0; r < rows.rows; r++) {
        if (!is_plain) {
            gather_row(wire + r * row_bytes, wire_dtype, term, row_of(&rows, r), r * rows.columns, rows.columns);
        } else if (wire + r * row_bytes != row_of(&rows, r)) {
            memcpy(wire + r * row_bytes, row_of(&rows, r), row_bytes);
        }
    }
}

static void gather_accumulator(unsigned char *wire, gsync_dtype wire_dtype, const gs_host_term *term) {
    const gsync_dtype wide_dtype = gs_dtype_wide(term->tensor->dtype);
    const size_t total = gs_tensor_count(term->tensor);
    gs_wide_block wide;
    for (size_t done = 0; done < total; done += GS_BLOCK) {
        const size_t count = block_length(total, done);
        const unsigned char *from = (const unsigned char *)term->accumulator + done * gsync_dtype_size(wide_dtype);
        gs_widen(&wide, from, wide_dtype, count);
        gs_wide_convert(&wide, wide_dtype, gs_dtype_wide(wire_dtype), count);
        gs_narrow(wire + done * gsync_dtype_size(wire_dtype), &wide, wire_dtype, count);
    }
}

void gs_host_gather(void *wire, gsync_dtype wire_dtype, const gs_host_term *term) {
    assert(wire != NULL || gs_tensor_count(term->tensor) == 0);
    if (term->has_tensor) {
        gather_tensor(wire, wire_dtype, term);
    } else if (term->accumulator != NULL) {
        gather_accumulator(wire, wire_dtype, term);
    } else {
        memset(wire, 0, gs_tensor_count(term->tensor) * gsync_dtype_size(wire_dtype));
    }
}

/* ---- scatter ---- */

static void scatter_row(void *row, gsync_dtype dtype, const unsigned char *wire, gsync_dtype wire_dtype,
                        size_t columns) {
    gs_wide_block wide;
    for (size_t done = 0; done < columns; done += GS_BLOCK) {
        const size_t count = block_length(columns, done);
        gs_widen(&wide, wire + done * gsync_dtype_size(wire_dtype), wire_dtype, count);
        gs_wide_convert(&wide, gs_dtype_wide(wire_dtype), gs_dtype_wide(dtype), count);
        gs_narrow((unsigned char *)row + done * gsync_dtype_size(dtype), &wide, dtype, count);
    }
}

void gs_host_scatter(const gs_tensor *tensor, const void *wire, gsync_dtype wire_dtype) {
    const gs_tensor rows = as_rows(tensor);
    const size_t row_bytes = rows.columns * gsync_dtype_size(wire_dtype);
    for (size_t r = 0; r < rows.rows; r++) {
        const unsigned char *from = (const unsigned char *)wire + r * row_bytes;
        if (rows.dtype != wire_dtype) {
            scatter_row(row_of(&rows, r), rows.dtype, from, wire_dtype, rows.columns);
        } else if (row_of(&rows, r) != from) {
            memcpy(row_of(&rows, r), from, row_bytes);
        }
    }
}

/* ---- ranges ---- */

void gs_host_gather_range(void *wire, gsync_dtype wire_dtype, const gs_host_term *term, size_t first, size_t count) {
    const size_t wide = gsync_dtype_size(gs_dtype_wide(term->tensor->dtype));
    unsigned char *at = wire;
    for (size_t done = 0; done < count;) {
        size_t length = count - done;
        const gs_tensor part = gs_tensor_part(term->tensor, first + done, &length);
        gs_host_term part_term = *term;
        part_term.tensor = &part;
        if (term->accumulator != NULL) {
            part_term.accumulator = (const unsigned char *)term->accumulator + (first + done) * wide;
        }
        gs_host_gather(at, wire_dtype, &part_term);
        at += length * gsync_dtype_size(wire_dtype);
        done += length;
    }
}

void gs_host_scatter_range(const gs_tensor *tensor, size_t first, size_t count, const void *wire,
                           gsync_dtype wire_dtype) {
    const unsigned char *at = wire;
    for (size_t done = 0; done < count;) {
        size_t length = count - done;
        const gs_tensor part = gs_tensor_part(tensor, first + done, &length);
        gs_host_scatter(&part, at, wire_dtype);
        at += length * gsync_dtype_size(wire_dtype);
        done += length;
    }
}

/* ---- accumulate ---- */

void gs_host_accumulate(void *accumulator, const gs_tensor *tensor, double factor, bool starts) {
    const gs_host_term term = {
        .tensor = tensor, .has_tensor = true, .accumulator = starts ? NULL : accumulator, .factor = factor};
    gs_host_gather(accumulator, gs_dtype_wide(tensor->dtype), &term);
}

/* ---- norm and clip ---- */

/* Of at most GS_BLOCK elements of the wide type. */
static double square_sum_of_block(const void *wide, gsync_dtype wide_dtype, size_t count) {
    const gs_kernels *const kernels = gs_kernels_best();
    return wide_dtype == GSYNC_FLOAT64 ? kernels->square_sum_f64(wide, count) : kernels->square_sum_f32(wide, count);
}

static void load_doubles(double *to, const float *from, size_t count) {
    for (size_t k = 0; k < count; k++) {
        to[k] = (double)from[k];
    }
}

static double square_sum_scaled(const gs_wide_block *block, gsync_dtype wide_dtype, size_t count, double scale) {
    double doubles[GS_BLOCK];
    if (wide_dtype == GSYNC_FLOAT64) {
        memcpy(doubles, block->d, count * sizeof *doubles);
    } else {
        load_doubles(doubles, block->f, count);
    }
    gs_kernels_best()->scale_f64(doubles, doubles, scale, count);
    return square_sum_of_block(doubles, GSYNC_FLOAT64, count);
}

double gs_host_square_sum(const gs_tensor *tensor, double scale) {
    const gsync_dtype wide_dtype = gs_dtype_wide(tensor->dtype);
    const gs_host_term term = {.tensor = tensor, .has_tensor = true, .factor = 1.0};
    const bool is_in_place = gs_tensor_is_dense(tensor) && tensor->dtype == wide_dtype && scale == 1.0;
    const size_t total = gs_tensor_count(tensor);
    double sum = 0;
    gs_wide_block block;
    /* Blocks of elements, not of rows: where rows end must not change how squares are grouped. */
    for (size_t done = 0; done < total; done += GS_BLOCK) {
        const size_t count = block_length(total, done);
        if (is_in_place) {
            const size_t offset = done * gsync_dtype_size(wide_dtype);
            sum += square_sum_of_block((const unsigned char *)tensor->data + offset, wide_dtype, count);
            continue;
        }
        gs_host_gather_range(&block, wide_dtype, &term, done, count);
        sum += scale == 1.0 ? square_sum_of_block(&block, wide_dtype, count)
                            : square_sum_scaled(&block, wide_dtype, count, scale);
    }
    return sum;
}

/* The factor in float64: in float32 it would be rounded itself, and could vanish. */
static void scale_floats(float *x, double factor, size_t count) {
    for (size_t k = 0; k < count; k++) {
        x[k] = (float)((double)x[k] * factor);
    }
}

static void scale_row(unsigned char *row, gsync_dtype dtype, size_t columns, double factor) {
    gs_wide_block wide;
    if (dtype == GSYNC_FLOAT64) {
        gs_kernels_best()->scale_f64((double *)(void *)row, (const double *)(const void *)row, factor, columns);
        return;
    }
    for (size_t done = 0; done < columns; done += GS_BLOCK) {
        const size_t count = block_length(columns, done);
        unsigned char *const at = row + done * gsync_dtype_size(dtype);
        gs_widen(&wide, at, dtype, count);
        scale_floats(wide.f, factor, count);
        gs_narrow(at, &wide, dtype, count);
    }
}

void gs_host_scale(const gs_tensor *tensor, double factor) {
    const gs_tensor rows = as_rows(tensor);
    for (size_t r = 0; r < rows.rows; r++) {
        scale_row(row_of(&rows, r), rows.dtype, rows.columns, factor);
    }
}

/* ---- hash ---- */

uint64_t gs_host_hash(const void *data, size_t bytes, uint64_t seed) {
    const unsigned char *at = data;
    uint64_t hash = gs_hash_mix(seed, bytes);
    size_t done = 0;
    for (; done + sizeof(uint64_t) <= bytes; done += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, at + done, sizeof word);
        hash = gs_hash_mix(hash, word);
    }
    if (done < bytes) {
        uint64_t word = 0;
        memcpy(&word, at + done, bytes - done);
        hash = gs_hash_mix(hash, word);
    }
    return hash;
}

uint64_t gs_host_hash_tensor(const gs_tensor *tensor) {
    const gs_tensor rows = as_rows(tensor);
    uint64_t hash = 0;
    for (size_t r = 0; r < rows.rows; r++) {
        hash = gs_host_hash(row_of(&rows, r), rows.columns * gsync_dtype_size(rows.dtype), hash);
    }
    return hash;
}
