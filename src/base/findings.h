/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_FINDINGS_H
#define GS_BASE_FINDINGS_H

#include "base/kernels.h"

/* Adds what was noticed in a part that starts at element `offset`. */
static inline void gs_findings_add(gs_findings *to, const gs_findings *part, size_t offset) {
    to->square_sum += part->square_sum;
    to->absmax = part->absmax > to->absmax ? part->absmax : to->absmax;
    to->saturated += part->saturated;
    to->flushed += part->flushed;
    if (part->has_nonfinite && (!to->has_nonfinite || offset + part->nonfinite_element < to->nonfinite_element)) {
        to->has_nonfinite = true;
        to->nonfinite_element = offset + part->nonfinite_element;
        to->nonfinite_source = part->nonfinite_source;
    }
}

#endif
