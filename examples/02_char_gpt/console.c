/* SPDX-License-Identifier: Apache-2.0 */
#include "console.h"

#include <time.h>
#include <unistd.h>

/* Renewing the line more often is not read, and costs when the terminal is far away. */
static const double RENEWAL_S = 0.1;

/* Plain lines in a pipe. */
enum { PLAIN_LINES = 10 };

double console_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void console_start(console *c, int64_t first_step, int64_t last_step, double tokens_per_step) {
    c->is_terminal = isatty(STDERR_FILENO) == 1;
    c->first_step = first_step;
    c->last_step = last_step;
    c->tokens_per_step = tokens_per_step;
    c->start_s = console_clock();
    c->shown_s = 0.0;
    c->steps_done = 0;
}

static void print_line(FILE *to, const console *c, int64_t step, double loss, double gradient_norm) {
    const double steps_per_s = (double)c->steps_done / (console_clock() - c->start_s + 1e-9);
    fprintf(to, "step %*lld/%lld  loss %.4f  gradient norm %.3f  %.1f steps/s  %.0f s left", 4, (long long)step,
            (long long)c->last_step, loss, gradient_norm, steps_per_s, (double)(c->last_step - step) / steps_per_s);
}

/* True for the first step, the last, and those where another tenth of the way is done. */
static bool is_milestone(const console *c, int64_t step) {
    const int64_t planned = c->last_step - c->first_step + 1;
    const int64_t done = step - c->first_step + 1;
    return done == 1 || done * PLAIN_LINES / planned != (done - 1) * PLAIN_LINES / planned;
}

void console_step(console *c, int64_t step, double loss, double gradient_norm) {
    if (c->steps_done == 0) {
        c->first_loss = loss;
    }
    c->last_losses[c->steps_done % CONSOLE_LAST_LOSSES] = loss;
    c->steps_done++;
    if (!c->is_speaker || c->is_quiet) {
        return;
    }
    if (c->is_terminal) {
        const double now = console_clock();
        if (now - c->shown_s < RENEWAL_S && step != c->last_step) {
            return;
        }
        c->shown_s = now;
        fputc('\r', stderr);
        print_line(stderr, c, step, loss, gradient_norm);
        /* Wipes what is left of a longer line before. */
        fputs(step == c->last_step ? "\033[K\n" : "\033[K", stderr);
        fflush(stderr);
    } else if (is_milestone(c, step)) {
        print_line(stdout, c, step, loss, gradient_norm);
        fputc('\n', stdout);
        fflush(stdout);
    }
}

void console_finish(const console *c, double waited_s) {
    if (!c->is_speaker || c->steps_done == 0) {
        return;
    }
    const double seconds = console_clock() - c->start_s;
    const int64_t count = c->steps_done < CONSOLE_LAST_LOSSES ? c->steps_done : CONSOLE_LAST_LOSSES;
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += c->last_losses[i];
    }
    const double final_loss = sum / (double)count;
    printf("first loss %.4f, final loss %.4f (mean of the last %lld), which is %.0f %% of the first\n", c->first_loss,
           final_loss, (long long)count, 100.0 * final_loss / c->first_loss);
    printf("%.1f s, %.0f tokens/s; %.2f s of it (%.1f %%) waiting for gradients of other ranks\n", seconds,
           (double)c->steps_done * c->tokens_per_step / seconds, waited_s, 100.0 * waited_s / seconds);
    fflush(stdout);
}
