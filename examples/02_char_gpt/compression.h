/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_COMPRESSION_H
#define CHAR_GPT_COMPRESSION_H

/* How gradients travel, and what a reducer remembers when they lose something on the way. */

#include "checkpoint.h"
#include "settings.h"

#include <gradsync/gradsync.h>

/* Between the registration of the gradients and the commit. */
gsync_status compression_choose(gsync_reducer *reducer, const settings *s);

/* Each rank its own part of the checkpoint PATH, after step `step`. Where it goes wrong: false, and why. */
bool compression_save(const gsync_reducer *reducer, const char *path, int rank, int64_t step,
                      checkpoint_reason *reason);
bool compression_load(gsync_reducer *reducer, const char *path, int rank, int64_t step, checkpoint_reason *reason);

#endif
