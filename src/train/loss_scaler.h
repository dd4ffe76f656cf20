/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_TRAIN_LOSS_SCALER_H
#define GS_TRAIN_LOSS_SCALER_H

/*
 * How the loss scale moves: a function of its options, its state and one flag per step. Ranks with the same options
 * that see the same flags have the same scale, bit for bit: all factors are powers of two.
 */

#include <gradsync/gradsync.h>
#include <stdbool.h>

typedef struct gs_loss_scaler {
    gsync_scaler_options options; /* checked, with the defaults filled in */
    gsync_scaler_state state;
} gs_loss_scaler;

/* Refuses nonsense by the member's name; *scaler is then as before. options: zeros are defaults. */
gsync_status gs_loss_scaler_init(gs_loss_scaler *scaler, const gsync_scaler_options *options);

/* One step. Whether the last skips_max steps or more were skipped with a scale that could not shrink any more. */
bool gs_loss_scaler_update(gs_loss_scaler *scaler, bool found_inf);

/* Refuses a state in which no scaler with these options can be; then nothing is changed. */
gsync_status gs_loss_scaler_set_state(gs_loss_scaler *scaler, const gsync_scaler_state *state);

#endif
