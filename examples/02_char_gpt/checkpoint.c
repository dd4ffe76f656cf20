/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint.h"

#include "hash.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Change the last digit whenever the layout changes. */
static const uint64_t MAGIC = 0x3254504752414843u; /* "CHARGPT2" */

enum { PATH_BYTES = 4096 };

enum {
    WORD_MAGIC,
    WORD_STEP,
    WORD_VOCABULARY,
    WORD_CONTEXT,
    WORD_LAYERS,
    WORD_WIDTH,
    WORD_HEADS,
    WORD_OPTIMIZER,
    WORD_WIRE,
    WORD_SEED,
    WORD_GLOBAL_BATCH,
    WORD_TEXT,
    WORD_PARAMETERS,
    WORD_COUNT
};

/* In the order of the words: what a difference is called, with the option that sets it. */
static const char *const WORD_NAMES[WORD_COUNT] = {
    [WORD_VOCABULARY] = "the vocabulary of --text",
    [WORD_CONTEXT] = "--context",
    [WORD_LAYERS] = "--layers",
    [WORD_WIDTH] = "--width",
    [WORD_HEADS] = "--heads",
    [WORD_OPTIMIZER] = "--optimizer",
    [WORD_WIRE] = "--wire",
    [WORD_SEED] = "--seed",
    [WORD_GLOBAL_BATCH] = "--global-batch",
    [WORD_TEXT] = "--text",
    [WORD_PARAMETERS] = "the number of parameters",
};

static bool give_reason(checkpoint_reason *reason, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason->words, sizeof reason->words, format, arguments);
    va_end(arguments);
    return false;
}

static void fill_words(uint64_t *words, const checkpoint_identity *identity, int64_t step, const model *m) {
    words[WORD_MAGIC] = MAGIC;
    words[WORD_STEP] = (uint64_t)step;
    words[WORD_VOCABULARY] = (uint64_t)identity->shape.vocabulary;
    words[WORD_CONTEXT] = (uint64_t)identity->shape.context;
    words[WORD_LAYERS] = (uint64_t)identity->shape.layers;
    words[WORD_WIDTH] = (uint64_t)identity->shape.width;
    words[WORD_HEADS] = (uint64_t)identity->shape.heads;
    words[WORD_OPTIMIZER] = (uint64_t)identity->optimizer;
    words[WORD_WIRE] = (uint64_t)identity->wire;
    words[WORD_SEED] = identity->seed;
    words[WORD_GLOBAL_BATCH] = (uint64_t)identity->global_batch;
    words[WORD_TEXT] = identity->text_hash;
    words[WORD_PARAMETERS] = (uint64_t)m->parameter_count;
}

/* Tells a file that was cut off or damaged from a whole one. */
static uint64_t hash_all(const uint64_t *words, const model *m, const optimizer *o) {
    const size_t bytes = m->parameter_count * sizeof(float);
    uint64_t hashes[2 + OPTIMIZER_STATES_MAX] = {0};
    hashes[0] = hash_bytes(words, WORD_COUNT * sizeof *words);
    hashes[1] = hash_bytes(m->parameters, bytes);
    for (int i = 0; i < o->state_count; i++) {
        hashes[2 + i] = hash_bytes(o->states[i], bytes);
    }
    return hash_bytes(hashes, sizeof hashes);
}

static bool write_all(FILE *file, const uint64_t *words, const model *m, const optimizer *o) {
    const uint64_t hash = hash_all(words, m, o);
    bool is_written = fwrite(words, sizeof *words, WORD_COUNT, file) == WORD_COUNT;
    is_written = is_written && fwrite(m->parameters, sizeof(float), m->parameter_count, file) == m->parameter_count;
    for (int i = 0; is_written && i < o->state_count; i++) {
        is_written = fwrite(o->states[i], sizeof(float), m->parameter_count, file) == m->parameter_count;
    }
    /* Without the flush to the disk, a power failure could leave the new name on an empty file. */
    return is_written && fwrite(&hash, sizeof hash, 1, file) == 1 && fflush(file) == 0 && fsync(fileno(file)) == 0;
}

static bool temporary_path(const char *path, char *temporary, size_t size, checkpoint_reason *reason) {
    const int length = snprintf(temporary, size, "%s.tmp", path);
    if (length < 0 || (size_t)length >= size) {
        return give_reason(reason, "cannot write the checkpoint: its path is too long");
    }
    return true;
}

bool checkpoint_is_writable(const char *path, checkpoint_reason *reason) {
    char temporary[PATH_BYTES];
    if (!temporary_path(path, temporary, sizeof temporary, reason)) {
        return false;
    }
    FILE *file = fopen(temporary, "wb");
    if (file == NULL) {
        return give_reason(reason, "cannot create the checkpoint %s: %s", temporary, strerror(errno));
    }
    fclose(file);
    remove(temporary);
    return true;
}

bool checkpoint_write(const char *path, const checkpoint_identity *identity, int64_t step, const model *m,
                      const optimizer *o, checkpoint_reason *reason) {
    char temporary[PATH_BYTES];
    if (!temporary_path(path, temporary, sizeof temporary, reason)) {
        return false;
    }
    FILE *file = fopen(temporary, "wb");
    if (file == NULL) {
        return give_reason(reason, "cannot create the checkpoint %s: %s", temporary, strerror(errno));
    }
    uint64_t words[WORD_COUNT];
    fill_words(words, identity, step, m);
    const bool is_written = write_all(file, words, m, o);
    const int write_error = errno;
    const bool is_closed = fclose(file) == 0;
    if (!is_written || !is_closed) {
        give_reason(reason, "cannot write the checkpoint %s: %s", temporary,
                    strerror(is_written ? errno : write_error));
        remove(temporary);
        return false;
    }
    if (rename(temporary, path) != 0) {
        return give_reason(reason, "cannot rename the checkpoint %s to %s: %s", temporary, path, strerror(errno));
    }
    return true;
}

static bool check_words(const char *path, const uint64_t *words, const uint64_t *expected, checkpoint_reason *reason) {
    if (words[WORD_MAGIC] != MAGIC) {
        return give_reason(reason, "%s is no checkpoint of this program", path);
    }
    for (int i = WORD_VOCABULARY; i < WORD_COUNT; i++) {
        if (words[i] != expected[i]) {
            return give_reason(reason, "%s was made with another value of %s: %llu there, %llu here", path,
                               WORD_NAMES[i], (unsigned long long)words[i], (unsigned long long)expected[i]);
        }
    }
    return true;
}

static bool read_all(FILE *file, const char *path, const uint64_t *words, model *m, optimizer *o,
                     checkpoint_reason *reason) {
    bool is_read = fread(m->parameters, sizeof(float), m->parameter_count, file) == m->parameter_count;
    for (int i = 0; is_read && i < o->state_count; i++) {
        is_read = fread(o->states[i], sizeof(float), m->parameter_count, file) == m->parameter_count;
    }
    uint64_t hash = 0;
    is_read = is_read && fread(&hash, sizeof hash, 1, file) == 1;
    if (!is_read || hash != hash_all(words, m, o)) {
        return give_reason(reason, "%s is damaged or incomplete", path);
    }
    return true;
}

bool checkpoint_read(const char *path, const checkpoint_identity *identity, model *m, optimizer *o, int64_t *step,
                     checkpoint_reason *reason) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return give_reason(reason, "cannot open the checkpoint %s: %s", path, strerror(errno));
    }
    uint64_t expected[WORD_COUNT];
    uint64_t words[WORD_COUNT] = {0};
    fill_words(expected, identity, 0, m);
    bool is_good = false;
    if (fread(words, sizeof *words, WORD_COUNT, file) != WORD_COUNT) {
        give_reason(reason, "%s is no checkpoint of this program", path);
    } else if (check_words(path, words, expected, reason) && read_all(file, path, words, m, o, reason)) {
        *step = (int64_t)words[WORD_STEP];
        is_good = true;
    }
    fclose(file);
    return is_good;
}
