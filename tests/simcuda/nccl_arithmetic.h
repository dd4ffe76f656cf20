/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NCCL_ARITHMETIC_H
#define NCCL_ARITHMETIC_H

#include <cstddef>
#include <nccl.h>

namespace simcuda {

/* 0 for types that are not simulated: the two of 8-bit floats. */
size_t bytes_of(ncclDataType_t type);

/* into[i] = into[i] op from[i], in the type itself and rounded to it, as NCCL does on every hop of its ring. */
void reduce(void *into, const void *from, size_t count, ncclDataType_t type, ncclRedOp_t op);

/* A scalar in memory that holds one of the type. */
double scalar_of(const void *scalar, ncclDataType_t type);

/* values[i] *= factor, the factor rounded to the type first; how NCCL does ncclAvg and pre-multiplied sums. */
void multiply(void *values, size_t count, ncclDataType_t type, double factor);
bool is_floating(ncclDataType_t type);
/* For averages of integers. */
void divide(void *values, size_t count, ncclDataType_t type, int divisor);

} // namespace simcuda

#endif
