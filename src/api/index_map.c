/* SPDX-License-Identifier: Apache-2.0 */
#include "api/index_map.h"

#include "base/memory.h"

enum { CAPACITY_MIN = 16 };

static void set_free(gs_index_entry *entries, size_t capacity) {
    for (size_t i = 0; i < capacity; i++) {
        entries[i] = (gs_index_entry){0, GS_NO_INDEX};
    }
}

static void insert(gs_index_map *map, uint64_t key, uint32_t index) {
    size_t at = gs_index_map_start(map, key);
    while (map->entries[at].index != GS_NO_INDEX && map->entries[at].key != key) {
        at = (at + 1) & (map->capacity - 1);
    }
    map->count += map->entries[at].index == GS_NO_INDEX;
    map->entries[at] = (gs_index_entry){key, index};
}

gsync_status gs_index_map_reserve(gs_index_map *map, size_t count) {
    size_t capacity = map->capacity > CAPACITY_MIN ? map->capacity : CAPACITY_MIN;
    while (capacity / 2 < count) {
        capacity *= 2;
    }
    if (capacity == map->capacity) {
        return GSYNC_OK;
    }
    gs_index_map larger = {.capacity = capacity};
    GS_TRY(gs_memory_new(&larger.entries, capacity, sizeof *larger.entries, "gradient index"));
    set_free(larger.entries, capacity);
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->entries[i].index != GS_NO_INDEX) {
            insert(&larger, map->entries[i].key, map->entries[i].index);
        }
    }
    gs_memory_free(map->entries);
    *map = larger;
    return GSYNC_OK;
}

gsync_status gs_index_map_put(gs_index_map *map, uint64_t key, uint32_t index) {
    GS_TRY(gs_index_map_reserve(map, map->count + 1));
    insert(map, key, index);
    return GSYNC_OK;
}

void gs_index_map_remove(gs_index_map *map, uint64_t key) {
    if (gs_index_map_find(map, key) == GS_NO_INDEX) {
        return;
    }
    const size_t mask = map->capacity - 1;
    size_t hole = gs_index_map_start(map, key);
    while (map->entries[hole].key != key) {
        hole = (hole + 1) & mask;
    }
    /* Entries behind the hole that a probe could no longer reach move into it. */
    for (size_t at = (hole + 1) & mask; map->entries[at].index != GS_NO_INDEX; at = (at + 1) & mask) {
        const size_t wanted = gs_index_map_start(map, map->entries[at].key);
        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            map->entries[hole] = map->entries[at];
            hole = at;
        }
    }
    map->entries[hole] = (gs_index_entry){0, GS_NO_INDEX};
    map->count--;
}

void gs_index_map_empty(gs_index_map *map) {
    set_free(map->entries, map->capacity);
    map->count = 0;
}

void gs_index_map_clear(gs_index_map *map) {
    gs_memory_free(map->entries);
    *map = (gs_index_map){0};
}
