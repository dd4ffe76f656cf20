/* SPDX-License-Identifier: Apache-2.0 */
#include <gradsync/gradsync.h>
#include <math.h>

double gsync_lr_scale(gsync_lr_rule rule, double old_effective_batch, double new_effective_batch) {
    const double factor = new_effective_batch / old_effective_batch;
    if (!(old_effective_batch > 0) || !(new_effective_batch > 0) || !isfinite(factor)) {
        return 0;
    }
    return rule == GSYNC_LR_SQRT ? sqrt(factor) : factor;
}
