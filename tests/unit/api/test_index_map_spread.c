/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses come at regular distances: slices of a flat buffer, arenas on huge pages. None may turn into a scan. */

#include "api/index_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

static const uint64_t FIRST = UINT64_C(0x7f0000000010);

static size_t probes_for(const gs_index_map *map, uint64_t key) {
    size_t at = gs_index_map_start(map, key);
    size_t probes = 1;
    while (map->entries[at].key != key) {
        at = (at + 1) & (map->capacity - 1);
        probes++;
    }
    return probes;
}

static void check_distance(size_t count, uint64_t distance) {
    gs_index_map map = {0};
    size_t probes = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(gs_index_map_put(&map, FIRST + i * distance, (uint32_t)i), GSYNC_OK);
    }
    for (size_t i = 0; i < count; i++) {
        probes += probes_for(&map, FIRST + i * distance);
    }
    if (probes > 2 * count) {
        print_error("%zu gradients %llu bytes apart: %.1f probes each\n", count, (unsigned long long)distance,
                    (double)probes / (double)count);
    }
    assert_true(probes <= 2 * count);
    gs_index_map_clear(&map);
}

static void two_probes_find_a_gradient_whatever_the_distance(void **state) {
    (void)state;
    static const size_t counts[] = {10, 31, 100, 300, 1000, 7654};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (unsigned shift = 2; shift <= 36; shift++) {
            for (uint64_t odd = 1; odd <= 7; odd += 2) {
                check_distance(counts[c], odd << shift);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_probes_find_a_gradient_whatever_the_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
