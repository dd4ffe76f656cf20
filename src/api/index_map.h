/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_API_INDEX_MAP_H
#define GS_API_INDEX_MAP_H

/* From a 64-bit key (an address, or a name's hash) to a gradient's index: one probe or two, whatever the number. */

#include "base/fail.h"

#include <stdbool.h>

#define GS_NO_INDEX UINT32_MAX

typedef struct gs_index_entry {
    uint64_t key;
    uint32_t index; /* GS_NO_INDEX: free */
} gs_index_entry;

typedef struct gs_index_map {
    gs_index_entry *entries;
    size_t capacity; /* a power of two, at least twice the count; 0 before the first put */
    size_t count;
} gs_index_map;

/* Twice, so that addresses which differ in a few high bits only, as those of large tensors do, are spread as well. */
static inline size_t gs_index_map_start(const gs_index_map *map, uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    key = (key ^ (key >> 32)) * 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 32) & (map->capacity - 1);
}

static inline uint32_t gs_index_map_find(const gs_index_map *map, uint64_t key) {
    if (map->capacity == 0) {
        return GS_NO_INDEX;
    }
    size_t at = gs_index_map_start(map, key);
    while (map->entries[at].index != GS_NO_INDEX && map->entries[at].key != key) {
        at = (at + 1) & (map->capacity - 1);
    }
    return map->entries[at].index;
}

/* Adds or replaces. Only growing can fail, and then the map is as before. */
gsync_status gs_index_map_put(gs_index_map *map, uint64_t key, uint32_t index);

/* Makes room for count entries, so that as many puts cannot fail. */
gsync_status gs_index_map_reserve(gs_index_map *map, size_t count);

void gs_index_map_remove(gs_index_map *map, uint64_t key);
void gs_index_map_empty(gs_index_map *map);
void gs_index_map_clear(gs_index_map *map);

#endif
