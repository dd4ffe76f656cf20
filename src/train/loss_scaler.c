/* SPDX-License-Identifier: Apache-2.0 */
#include "train/loss_scaler.h"

#include "base/fail.h"

#include <math.h>

/* ---- options ---- */

/* Float32 holds all of these and their reciprocals as normal numbers, so neither scaling nor unscaling rounds. */
#define POWER_MIN 0x1p-126
#define POWER_MAX 0x1p126

static bool is_power_of_two(double value) {
    int exponent;
    return isfinite(value) && frexp(value, &exponent) == 0.5;
}

static gsync_status check_power(const char *member, double value, double least, double most) {
    if (!is_power_of_two(value) || value < least || value > most) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "%s is %g: it has to be a power of two from %g to %g", member, value, least,
                       most);
    }
    return GSYNC_OK;
}

static double or_default(double value, double other) {
    return fpclassify(value) == FP_ZERO ? other : value;
}

gsync_status gs_loss_scaler_init(gs_loss_scaler *scaler, const gsync_scaler_options *from) {
    gsync_scaler_options options = *from;
    options.scale = or_default(options.scale, 65536.0);
    options.growth_factor = or_default(options.growth_factor, 2.0);
    options.backoff_factor = or_default(options.backoff_factor, 0.5);
    options.scale_min = or_default(options.scale_min, 1.0);
    options.scale_max = or_default(options.scale_max, 0x1p24);
    options.growth_interval = options.growth_interval == 0 ? 2000 : options.growth_interval;
    options.skips_max = options.skips_max == 0 ? 100 : options.skips_max;
    GS_TRY(check_power("gsync_scaler_options.growth_factor", options.growth_factor, 1.0, POWER_MAX));
    GS_TRY(check_power("gsync_scaler_options.backoff_factor", options.backoff_factor, POWER_MIN, 1.0));
    GS_TRY(check_power("gsync_scaler_options.scale_min", options.scale_min, POWER_MIN, POWER_MAX));
    GS_TRY(check_power("gsync_scaler_options.scale_max", options.scale_max, options.scale_min, POWER_MAX));
    GS_TRY(check_power("gsync_scaler_options.scale", options.scale, options.scale_min, options.scale_max));
    scaler->options = options;
    scaler->state = (gsync_scaler_state){.struct_size = sizeof scaler->state, .scale = options.scale};
    return GSYNC_OK;
}

/* ---- steps ---- */

static void take_clean_step(gs_loss_scaler *scaler) {
    gsync_scaler_state *state = &scaler->state;
    state->skips_in_a_row = 0;
    state->clean_steps++;
    if (state->clean_steps >= scaler->options.growth_interval) {
        const double grown = state->scale * scaler->options.growth_factor;
        state->scale = grown < scaler->options.scale_max ? grown : scaler->options.scale_max;
        state->clean_steps = 0;
    }
}

static void take_skipped_step(gs_loss_scaler *scaler) {
    gsync_scaler_state *state = &scaler->state;
    const double shrunk = state->scale * scaler->options.backoff_factor;
    const double next = shrunk > scaler->options.scale_min ? shrunk : scaler->options.scale_min;
    /* While the scale still shrinks there is hope. */
    const bool is_stuck = next == state->scale;
    state->skips_in_a_row += is_stuck && state->skips_in_a_row != UINT32_MAX;
    state->scale = next;
    state->clean_steps = 0;
    state->steps_skipped++;
}

bool gs_loss_scaler_update(gs_loss_scaler *scaler, bool found_inf) {
    scaler->state.steps++;
    if (found_inf) {
        take_skipped_step(scaler);
    } else {
        take_clean_step(scaler);
    }
    return scaler->state.skips_in_a_row >= scaler->options.skips_max;
}

/* ---- checkpoints ---- */

gsync_status gs_loss_scaler_set_state(gs_loss_scaler *scaler, const gsync_scaler_state *state) {
    GS_TRY(check_power("gsync_scaler_state.scale", state->scale, scaler->options.scale_min, scaler->options.scale_max));
    if (state->steps_skipped > state->steps) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_scaler_state.steps_skipped is %llu, of %llu steps",
                       (unsigned long long)state->steps_skipped, (unsigned long long)state->steps);
    }
    if (state->skips_in_a_row > state->steps_skipped) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_scaler_state.skips_in_a_row is %u, of %llu skipped steps",
                       (unsigned)state->skips_in_a_row, (unsigned long long)state->steps_skipped);
    }
    if (state->clean_steps > state->steps - state->steps_skipped) {
        return gs_fail(GSYNC_ERR_ARGUMENT, "gsync_scaler_state.clean_steps is %u, of %llu steps that were not skipped",
                       (unsigned)state->clean_steps, (unsigned long long)(state->steps - state->steps_skipped));
    }
    if (state->clean_steps != 0 && state->skips_in_a_row != 0) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "gsync_scaler_state.clean_steps is %u and skips_in_a_row %u: the last step "
                       "was one or the other",
                       (unsigned)state->clean_steps, (unsigned)state->skips_in_a_row);
    }
    scaler->state = *state;
    scaler->state.struct_size = sizeof scaler->state;
    return GSYNC_OK;
}
