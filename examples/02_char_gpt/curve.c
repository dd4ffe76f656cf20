/* SPDX-License-Identifier: Apache-2.0 */
#include "curve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A step's loss depends on how hard its few sequences are; the line through the cloud is a running mean. */
static const double SMOOTHING = 0.95;

enum { PATH_MAX_BYTES = 4096 };

bool curve_add(curve *c, curve_point point) {
    if (c->count == c->capacity) {
        const size_t capacity = c->capacity == 0 ? 1024 : 2 * c->capacity;
        curve_point *points = realloc(c->points, capacity * sizeof *points);
        if (points == NULL) {
            return false;
        }
        c->points = points;
        c->capacity = capacity;
    }
    c->points[c->count++] = point;
    return true;
}

void curve_destroy(curve *c) {
    free(c->points);
    *c = (curve){.count = 0};
}

static void print_table(FILE *to, const curve *c) {
    double sum = 0.0;
    double weight = 0.0;
    for (size_t i = 0; i < c->count; i++) {
        const curve_point *p = &c->points[i];
        sum = SMOOTHING * sum + p->loss;
        weight = SMOOTHING * weight + 1.0;
        fprintf(to, "%lld,%.9g,%.6f,%.9g\n", (long long)p->step, p->loss, sum / weight, p->gradient_norm);
    }
}

static bool write_table(const curve *c, const char *path) {
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        fprintf(stderr, "cannot create %s: %s\n", path, strerror(errno));
        return false;
    }
    fprintf(file, "step,loss,smoothed_loss,gradient_norm\n");
    print_table(file, c);
    const bool has_error = ferror(file) != 0;
    if (fclose(file) != 0 || has_error) {
        fprintf(stderr, "cannot write %s\n", path);
        return false;
    }
    return true;
}

static bool has_program(const char *name) {
    const char *directories = getenv("PATH");
    while (directories != NULL && *directories != '\0') {
        const size_t length = strcspn(directories, ":");
        char path[PATH_MAX_BYTES];
        const int written = snprintf(path, sizeof path, "%.*s/%s", (int)length, directories, name);
        if (written > 0 && (size_t)written < sizeof path && access(path, X_OK) == 0) {
            return true;
        }
        directories += length;
        directories += *directories == ':' ? 1 : 0;
    }
    return false;
}

/* Inside gnuplot's single quotes only the quote itself means something; it is written twice. */
static void print_quoted(FILE *to, const char *words) {
    fputc('\'', to);
    for (; *words != '\0'; words++) {
        fputs(*words == '\'' ? "''" : (char[2]){*words, '\0'}, to);
    }
    fputc('\'', to);
}

/* The data travels inside the script, so that gnuplot only has to open one file. */
static bool draw(const curve *c, const char *path, const char *title) {
    FILE *gnuplot = popen("gnuplot", "w");
    if (gnuplot == NULL) {
        fprintf(stderr, "cannot start gnuplot: %s\n", strerror(errno));
        return false;
    }
    fprintf(gnuplot, "$points << END_OF_POINTS\n");
    print_table(gnuplot, c);
    fprintf(gnuplot, "END_OF_POINTS\nset terminal pngcairo size 960,540 font 'sans,11'\nset output ");
    print_quoted(gnuplot, path);
    fprintf(gnuplot, "\nset title ");
    print_quoted(gnuplot, title);
    fprintf(gnuplot, " noenhanced\nset datafile separator ','\nset grid\nset border 3\nset tics nomirror\n"
                     "set xlabel 'step'\nset ylabel 'loss (nats per character)'\nset yrange [0:*]\n"
                     "plot $points using 1:2 with points pt 7 ps 0.4 lc rgb '#9ecae1' title 'step', "
                     "$points using 1:3 with lines lw 2 lc rgb '#08519c' title 'running mean'\n");
    if (pclose(gnuplot) != 0) {
        fprintf(stderr, "gnuplot could not draw %s\n", path);
        return false;
    }
    return true;
}

bool curve_write(const curve *c, const char *prefix, const char *title, bool *has_picture) {
    char path[PATH_MAX_BYTES];
    *has_picture = false;
    const int length = snprintf(path, sizeof path, "%s.csv", prefix);
    if (length < 0 || (size_t)length >= sizeof path) {
        fprintf(stderr, "cannot write the curve: its path is too long\n");
        return false;
    }
    if (!write_table(c, path)) {
        return false;
    }
    if (c->count == 0 || !has_program("gnuplot")) {
        return true;
    }
    snprintf(path, sizeof path, "%s.png", prefix);
    *has_picture = draw(c, path, title);
    return *has_picture;
}
