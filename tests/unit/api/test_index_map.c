/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: wrap=malloc,calloc,realloc,aligned_alloc,posix_memalign,free */
#include "api/index_map.h"

#include "alloc_fault.h"
#include "seeded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/*
 * Random operations on the map and on a model of it: a plain array over all keys that a run uses. Keys are few, so
 * that they are put, replaced and removed again and again, and of a kind that makes probes collide.
 */

enum { KEYS = 200, OPERATIONS = 4000, RUNS = 40 };
#define SEED 20240304

typedef struct model {
    uint64_t keys[KEYS];
    uint32_t indices[KEYS]; /* GS_NO_INDEX: not in the map */
    size_t count;
} model;

typedef uint64_t (*key_function)(seeded *random, size_t i);

static uint64_t an_address(seeded *random, size_t i) {
    (void)random;
    return UINT64_C(0x7f1234560000) + 64 * i;
}

static uint64_t a_hash(seeded *random, size_t i) {
    (void)i;
    return seeded_next(random);
}

/* Keys that are looked for in the last few places first: long runs of full entries, around the end of the table. */
static uint64_t a_neighbour(seeded *random, size_t i) {
    (void)i;
    const gs_index_map full = {.capacity = 512};
    uint64_t key = seeded_next(random);
    while (gs_index_map_start(&full, key) < full.capacity - 6) {
        key = seeded_next(random);
    }
    return key;
}

static uint64_t zero_and_its_like(seeded *random, size_t i) {
    (void)random;
    return i;
}

static void expect_same(const gs_index_map *map, const model *expected) {
    assert_true(map->count == expected->count);
    assert_true(map->capacity >= 2 * map->count);
    for (size_t i = 0; i < KEYS; i++) {
        assert_true(gs_index_map_find(map, expected->keys[i]) == expected->indices[i]);
    }
}

static void operate(gs_index_map *map, model *expected, seeded *random) {
    const size_t i = seeded_below(random, KEYS);
    const uint64_t key = expected->keys[i];
    const size_t choice = seeded_below(random, 1000);
    if (choice == 0) {
        gs_index_map_empty(map);
        memset(expected->indices, 0xff, sizeof expected->indices);
        expected->count = 0;
    } else if (choice < 550) {
        const uint32_t index = (uint32_t)seeded_below(random, 1000000);
        assert_int_equal(gs_index_map_put(map, key, index), GSYNC_OK);
        expected->count += expected->indices[i] == GS_NO_INDEX;
        expected->indices[i] = index;
    } else {
        gs_index_map_remove(map, key);
        expected->count -= expected->indices[i] != GS_NO_INDEX;
        expected->indices[i] = GS_NO_INDEX;
    }
}

static void expect_it_behaves_like_the_model(key_function key) {
    for (uint64_t run = 0; run < RUNS; run++) {
        seeded random = {SEED + run};
        gs_index_map map = {0};
        model expected = {.count = 0};
        memset(expected.indices, 0xff, sizeof expected.indices);
        for (size_t i = 0; i < KEYS; i++) {
            expected.keys[i] = key(&random, i);
        }
        for (int i = 0; i < OPERATIONS; i++) {
            operate(&map, &expected, &random);
            if (i % 50 == 0) {
                expect_same(&map, &expected);
            }
        }
        expect_same(&map, &expected);
        gs_index_map_clear(&map);
        assert_int_equal(gs_index_map_find(&map, expected.keys[0]), GS_NO_INDEX);
    }
}

static void finds_what_was_put_under_addresses(void **state) {
    (void)state;
    expect_it_behaves_like_the_model(an_address);
}

static void finds_what_was_put_under_hashes(void **state) {
    (void)state;
    expect_it_behaves_like_the_model(a_hash);
}

static void finds_what_was_put_under_keys_that_collide(void **state) {
    (void)state;
    expect_it_behaves_like_the_model(a_neighbour);
}

static void finds_what_was_put_under_small_keys_and_zero(void **state) {
    (void)state;
    expect_it_behaves_like_the_model(zero_and_its_like);
}

static void an_empty_map_finds_and_removes_nothing(void **state) {
    (void)state;
    gs_index_map map = {0};
    gs_index_map_remove(&map, 5);
    gs_index_map_empty(&map);
    assert_int_equal(gs_index_map_find(&map, 5), GS_NO_INDEX);
    gs_index_map_clear(&map);
}

static void puts_within_a_reserve_need_no_memory(void **state) {
    (void)state;
    gs_index_map map = {0};
    assert_int_equal(gs_index_map_reserve(&map, 1000), GSYNC_OK);
    const size_t capacity = map.capacity;
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(gs_index_map_put(&map, i * 4096u, i), GSYNC_OK);
    }
    assert_true(map.capacity == capacity);
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(gs_index_map_find(&map, i * 4096u), i);
    }
    gs_index_map_clear(&map);
}

/* Refusing to grow must not lose what is there. */
static void a_put_that_gets_no_memory_leaves_the_map_as_it_was(void **state) {
    (void)state;
    gs_index_map map = {0};
    uint32_t count = 0;
    for (int refusals = 0; refusals < 4; count++) {
        alloc_fault_fail_nth(1);
        const gsync_status status = gs_index_map_put(&map, count * 8u, count);
        alloc_fault_fail_nth(0);
        if (status != GSYNC_OK) {
            refusals++;
            assert_int_equal(status, GSYNC_ERR_MEMORY);
            assert_int_equal(map.count, count);
            assert_int_equal(gs_index_map_put(&map, count * 8u, count), GSYNC_OK);
        }
        for (uint32_t i = 0; i <= count; i++) {
            assert_int_equal(gs_index_map_find(&map, i * 8u), i);
        }
    }
    gs_index_map_clear(&map);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_was_put_under_addresses),
        cmocka_unit_test(finds_what_was_put_under_hashes),
        cmocka_unit_test(finds_what_was_put_under_keys_that_collide),
        cmocka_unit_test(finds_what_was_put_under_small_keys_and_zero),
        cmocka_unit_test(an_empty_map_finds_and_removes_nothing),
        cmocka_unit_test(puts_within_a_reserve_need_no_memory),
        cmocka_unit_test(a_put_that_gets_no_memory_leaves_the_map_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
