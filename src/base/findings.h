/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_BASE_FINDINGS_H
#define GS_BASE_FINDINGS_H

#include "base/kernels.h"

/* Whoever read an element knows whose it was. Who only saw the sum does not, nor what of a block was not finite before
 * it went over a wire: it all is afterwards. */
static inline bool gs_findings_is_better(bool is_known, size_t element, bool is_other_known, size_t other_element) {
    return is_known != is_other_known ? is_known : element < other_element;
}

/* Adds what was noticed in a part that starts at element `offset`. */
static inline void gs_findings_add(gs_findings *to, const gs_findings *part, size_t offset) {
    to->square_sum += part->square_sum;
    to->absmax = part->absmax > to->absmax ? part->absmax : to->absmax;
    to->saturated += part->saturated;
    to->flushed += part->flushed;
    if (part->has_nonfinite &&
        (!to->has_nonfinite || gs_findings_is_better(part->nonfinite_source >= 0, offset + part->nonfinite_element,
                                                     to->nonfinite_source >= 0, to->nonfinite_element))) {
        to->has_nonfinite = true;
        to->nonfinite_element = offset + part->nonfinite_element;
        to->nonfinite_source = part->nonfinite_source;
    }
}

#endif
