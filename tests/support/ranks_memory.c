/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 64
#define GUARD_BEFORE 0xb5
#define GUARD_AFTER 0xa7
#define FRESH 0xff /* NaN in every float, and no small integer */

/* In memory: this header, the guard before, the user's bytes, the guard after. */
typedef struct ranks_block {
    struct ranks_block *next;
    size_t bytes;
    char padding[64 - sizeof(struct ranks_block *) - sizeof(size_t)];
    unsigned char guard[GUARD_BYTES];
    unsigned char user[];
} ranks_block;

_Static_assert(offsetof(ranks_block, user) % 64 == 0, "what follows the guard is aligned");

static void end_without_memory(size_t bytes) {
    fprintf(stderr, "ranks: no memory for %zu bytes\n", bytes);
    exit(EXIT_FAILURE);
}

void *ranks_allocate(size_t bytes) {
    void *memory = malloc(bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        end_without_memory(bytes);
    }
    return memory;
}

void *ranks_memory(ranks_context *ctx, size_t bytes) {
    const size_t total = (sizeof(ranks_block) + bytes + GUARD_BYTES + 63) / 64 * 64;
    ranks_block *block = aligned_alloc(64, total);
    if (block == NULL) {
        end_without_memory(total);
    }
    block->bytes = bytes;
    memset(block->guard, GUARD_BEFORE, GUARD_BYTES);
    memset(block->user, FRESH, bytes);
    memset(block->user + bytes, GUARD_AFTER, GUARD_BYTES);
    block->next = ctx->hidden->blocks;
    ctx->hidden->blocks = block;
    return block->user;
}

static bool holds_only(const unsigned char *bytes, unsigned char value) {
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

static bool check_block(const ranks_block *block, const char *file, int line) {
    const bool before = holds_only(block->guard, GUARD_BEFORE) ||
                        ranks_fail(file, line, "written before a buffer of %zu bytes", block->bytes);
    const bool after = holds_only(block->user + block->bytes, GUARD_AFTER) ||
                       ranks_fail(file, line, "written behind a buffer of %zu bytes", block->bytes);
    return before && after;
}

bool ranks_check_guards(ranks_context *ctx, const char *file, int line) {
    bool all_hold = true;
    for (const ranks_block *block = ctx->hidden->blocks; block != NULL; block = block->next) {
        all_hold = check_block(block, file, line) && all_hold;
    }
    return all_hold;
}

void ranks_memory_free(ranks_context *ctx, void *memory) {
    for (ranks_block **link = &ctx->hidden->blocks; *link != NULL; link = &(*link)->next) {
        ranks_block *block = *link;
        if (block->user == memory) {
            check_block(block, __FILE__, __LINE__);
            *link = block->next;
            free(block);
            return;
        }
    }
    ranks_fail(__FILE__, __LINE__, "ranks_memory_free: not memory of this test");
}

bool ranks_memory_find(const void *address, void **start, size_t *bytes) {
    const ranks_context *ctx = ranks_current();
    for (ranks_block *block = ctx != NULL ? ctx->hidden->blocks : NULL; block != NULL; block = block->next) {
        if ((uintptr_t)address >= (uintptr_t)block->user &&
            (uintptr_t)address - (uintptr_t)block->user <= block->bytes) {
            *start = block->user;
            *bytes = block->bytes;
            return true;
        }
    }
    return false;
}

void ranks_memory_free_all(ranks_context *ctx) {
    while (ctx->hidden->blocks != NULL) {
        ranks_block *block = ctx->hidden->blocks;
        ctx->hidden->blocks = block->next;
        free(block);
    }
}
