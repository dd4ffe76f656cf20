/* SPDX-License-Identifier: Apache-2.0 */
#include <gradsync/gradsync.h>
#include <math.h>

double gsync_lr_scale(gsync_lr_rule rule, double old_effective_batch, double new_effective_batch) {
    /* Comparing with isgreater, and before dividing: the trainer's floating-point traps may be on. */
    if (!isgreater(old_effective_batch, 0) || !isgreater(new_effective_batch, 0) || !isfinite(old_effective_batch)) {
        return 0;
    }
    const double factor = new_effective_batch / old_effective_batch;
    if (!isfinite(factor)) {
        return 0;
    }
    return rule == GSYNC_LR_SQRT ? sqrt(factor) : factor;
}
