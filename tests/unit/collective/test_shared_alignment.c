/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks share lies in lines of its own: misplaced, it would be undefined, and ranks would slow each other. */

#include "collective/collective_threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

enum { RANKS = 3, TRIES = 50 };

static void bells_are_aligned_wherever_the_heap_puts_them(void **state) {
    (void)state;
    const gs_logger logger = {.log = NULL};
    gs_group *groups[TRIES][RANKS];
    for (int i = 0; i < TRIES; i++) {
        assert_int_equal(gs_threads_create(groups[i], RANKS, 1000, &logger), GSYNC_OK);
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal((uintptr_t)gs_group_bell(groups[i][rank]) % _Alignof(gs_bell), 0);
        }
    }
    for (int i = 0; i < TRIES; i++) {
        for (int rank = 0; rank < RANKS; rank++) {
            gs_group_destroy(groups[i][rank]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bells_are_aligned_wherever_the_heap_puts_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
