/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_CONSOLE_H
#define CHAR_GPT_CONSOLE_H

/*
 * What the person in front sees: on a terminal one line that renews itself, in a pipe a plain line every so often,
 * and a summary at the end.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { CONSOLE_LAST_LOSSES = 10 };

typedef struct console {
    bool is_speaker; /* prints at all: true on one rank only */
    bool is_quiet;   /* prints the summary only */
    bool is_terminal;
    int64_t first_step;
    int64_t last_step;
    double tokens_per_step;
    double start_s;
    double shown_s; /* when the line was last renewed */
    double first_loss;
    double last_losses[CONSOLE_LAST_LOSSES]; /* a ring */
    int64_t steps_done;
} console;

/* Seconds on a clock that nobody sets. */
double console_clock(void);

/* Training starts: steps first_step to last_step, if there are any. */
void console_start(console *c, int64_t first_step, int64_t last_step, double tokens_per_step);

void console_step(console *c, int64_t step, double loss, double gradient_norm);

/* waited_s: how much of the time went into waiting for the gradients of other ranks. */
void console_finish(const console *c, double waited_s);

#endif
