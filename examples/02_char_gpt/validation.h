/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_VALIDATION_H
#define CHAR_GPT_VALIDATION_H

#include "model.h"
#include "text.h"

/* Mean cross-entropy over what text_hold_out left, in sequences side by side. False when the memory does not suffice.
 */
bool validation_loss(model *m, const text *t, double *loss);

#endif
