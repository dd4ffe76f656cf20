/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAR_GPT_TEXT_H
#define CHAR_GPT_TEXT_H

/* The text to learn from, as numbers: the bytes that occur in it, sorted, are the vocabulary. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct text {
    unsigned char *bytes;
    size_t length;   /* that is learnt */
    size_t held_out; /* bytes after those, for validation only */
    int vocabulary;
    unsigned char character_of[256]; /* token to byte */
    int32_t token_of[256];           /* byte to token; 0 for bytes that do not occur */
} text;

/* Reads a whole file. On failure nothing is allocated and `reason` says in words what went wrong. */
bool text_read(text *t, const char *path, char *reason, size_t reason_size);

/* Allocates room for `length` bytes that the caller then fills: for ranks that receive the text from another. */
bool text_allocate(text *t, size_t length);

/* After the bytes are there. */
void text_find_vocabulary(text *t);

/* Holds back the last tenth, after the vocabulary was found: text_sample and text_hash then know the rest alone. */
void text_hold_out(text *t);

void text_destroy(text *t);

/*
 * Sample number `index` of the endless sequence of samples that belongs to a seed: `context` tokens from a random
 * place, and for each the token that follows it. It depends on nothing else, in particular on no rank.
 */
void text_sample(const text *t, uint64_t seed, uint64_t index, int context, int32_t *tokens, int32_t *targets);

/* A number that differs for different texts. */
uint64_t text_hash(const text *t);

#endif
