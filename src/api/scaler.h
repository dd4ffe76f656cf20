/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_API_SCALER_H
#define GS_API_SCALER_H

#include <gradsync/gradsync.h>
#include <stdbool.h>

/* What a reducer tells its scaler. */

/* The first micro-batch of a window has begun. */
void gs_scaler_open_window(gsync_scaler *scaler);
/* The window is over. has_result: it ended with a synchronised step, in which found_inf was agreed. */
void gs_scaler_close_window(gsync_scaler *scaler, bool has_result, bool found_inf);

/* A reducer that is destroyed lets its scaler go (NULL: it has none); has_window: in the middle of a window. The
 * trainer may have destroyed the scaler before. */
void gs_scaler_leave(gsync_scaler *scaler, bool has_window);

#endif
