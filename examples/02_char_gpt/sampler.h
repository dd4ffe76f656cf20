/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_SAMPLER_H
#define CHAR_GPT_SAMPLER_H

/* Writes new text, one character after the other, each drawn from what the model thinks comes next. */

#include "model.h"
#include "text.h"

#include <stdio.h>

/* Continues a piece from the middle of t, which is not printed. False when the memory does not suffice. */
bool sampler_write(model *m, const text *t, uint64_t seed, int count, FILE *to);

#endif
