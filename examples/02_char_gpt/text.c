/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include "hash.h"
#include "random_numbers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Much more than anybody trains such a model on; what matters is that a wrong path does not fill the memory. */
static const long LENGTH_MAX = 1L << 30;

static bool file_length(FILE *file, long *length) {
    if (fseek(file, 0, SEEK_END) != 0) {
        return false;
    }
    *length = ftell(file);
    return *length >= 0 && fseek(file, 0, SEEK_SET) == 0;
}

bool text_allocate(text *t, size_t length) {
    *t = (text){.length = length, .bytes = malloc(length)};
    return t->bytes != NULL;
}

bool text_read(text *t, const char *path, char *reason, size_t reason_size) {
    *t = (text){.length = 0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        snprintf(reason, reason_size, "cannot open the text %s: %s", path, strerror(errno));
        return false;
    }
    long length = 0;
    const bool has_length = file_length(file, &length);
    bool is_read = false;
    if (!has_length || length > LENGTH_MAX) {
        snprintf(reason, reason_size, "cannot read the text %s: it is no ordinary file of at most %ld bytes", path,
                 LENGTH_MAX);
    } else if (length == 0) {
        snprintf(reason, reason_size, "the text %s is empty", path);
    } else if (!text_allocate(t, (size_t)length)) {
        snprintf(reason, reason_size, "not enough memory for the text %s", path);
    } else if (fread(t->bytes, 1, t->length, file) != t->length) {
        snprintf(reason, reason_size, "cannot read the text %s: %s", path, strerror(errno));
    } else {
        is_read = true;
    }
    fclose(file);
    if (!is_read) {
        text_destroy(t);
    }
    return is_read;
}

void text_find_vocabulary(text *t) {
    bool occurs[256] = {false};
    for (size_t i = 0; i < t->length; i++) {
        occurs[t->bytes[i]] = true;
    }
    t->vocabulary = 0;
    for (int byte = 0; byte < 256; byte++) {
        t->token_of[byte] = 0;
        if (occurs[byte]) {
            t->token_of[byte] = t->vocabulary;
            t->character_of[t->vocabulary] = (unsigned char)byte;
            t->vocabulary++;
        }
    }
}

void text_hold_out(text *t) {
    t->held_out = t->length / 10;
    t->length -= t->held_out;
}

void text_destroy(text *t) {
    free(t->bytes);
    *t = (text){.length = 0};
}

void text_sample(const text *t, uint64_t seed, uint64_t index, int context, int32_t *tokens, int32_t *targets) {
    const uint64_t places = (uint64_t)t->length - (uint64_t)context;
    const unsigned char *start = t->bytes + random_bits(seed, RANDOM_SAMPLES, index) % places;
    for (int i = 0; i < context; i++) {
        tokens[i] = t->token_of[start[i]];
        targets[i] = t->token_of[start[i + 1]];
    }
}

uint64_t text_hash(const text *t) {
    return hash_bytes(t->bytes, t->length);
}
