/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_DEVICE_HOST_H
#define GS_DEVICE_DEVICE_HOST_H

/* Passes over gradients in host memory. Each reads its inputs once and writes its output once. */

#include "device/tensor.h"

/* What one gradient brings into a bucket: accumulator + factor * tensor. Either part may be missing. */
typedef struct gs_host_term {
    const gs_tensor *tensor;
    bool has_tensor;
    const void *accumulator; /* dense, in the wide type; NULL: none */
    double factor;
} gs_host_term;

/* wire = the term, in wire_dtype. Wire may be the tensor's own memory if it is dense and of that dtype. */
void gs_host_gather(void *wire, gsync_dtype wire_dtype, const gs_host_term *term);

/* The same for elements [first, first + count) of the tensor; wire points to the first of them. */
void gs_host_gather_range(void *wire, gsync_dtype wire_dtype, const gs_host_term *term, size_t first, size_t count);
void gs_host_scatter_range(const gs_tensor *tensor, size_t first, size_t count, const void *wire,
                           gsync_dtype wire_dtype);

/* tensor = wire */
void gs_host_scatter(const gs_tensor *tensor, const void *wire, gsync_dtype wire_dtype);

/* accumulator = (starts ? 0 : accumulator) + factor * tensor, in the wide type. */
void gs_host_accumulate(void *accumulator, const gs_tensor *tensor, double factor, bool starts);

/*
 * The squares of scale * elements, summed in float64. The bits depend on the elements and their order alone: not on the
 * pitch, which may differ from rank to rank, nor on the processor. scale: a power of two.
 */
double gs_host_square_sum(const gs_tensor *tensor, double scale);

/* tensor = factor * tensor, multiplied in float64 and rounded to the wide type, and for halves from there. */
void gs_host_scale(const gs_tensor *tensor, double factor);

/* 64-bit hash of plain bytes, and of a gradient's elements without what lies between its rows. */
uint64_t gs_host_hash(const void *data, size_t bytes, uint64_t seed);
uint64_t gs_host_hash_tensor(const gs_tensor *tensor);

#endif
