/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: wrap=malloc,calloc,realloc,aligned_alloc,posix_memalign,free */
#include "base/memory.h"

#include "alloc_fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static bool is_zero(const void *block, size_t bytes) {
    const unsigned char *const byte = block;
    for (size_t i = 0; i < bytes; i++) {
        if (byte[i] != 0) {
            return false;
        }
    }
    return true;
}

static void gives_zeroed_memory(void **state) {
    (void)state;
    uint64_t *block = NULL;
    assert_int_equal(gs_memory_new(&block, 1000, sizeof *block, "a test"), GSYNC_OK);
    const bool was_zero = is_zero(block, 1000 * sizeof *block);
    gs_memory_free(block);
    assert_true(was_zero);
}

static void gives_nothing_for_an_empty_request(void **state) {
    (void)state;
    int somewhere = 0;
    int *block = &somewhere;
    assert_int_equal(gs_memory_new(&block, 0, sizeof *block, "a test"), GSYNC_OK);
    assert_null(block);
    block = &somewhere;
    assert_int_equal(gs_memory_new(&block, 10, 0, "a test"), GSYNC_OK);
    assert_null(block);
    block = &somewhere;
    assert_int_equal(gs_memory_new_aligned(&block, 0, "a test"), GSYNC_OK);
    assert_null(block);
}

static void gives_zeroed_memory_that_starts_a_cache_line(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 63, 64, 65, 4096, 100001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *block = NULL;
        assert_int_equal(gs_memory_new_aligned(&block, sizes[i], "a test"), GSYNC_OK);
        const bool is_aligned = (uintptr_t)block % 64 == 0;
        const bool was_zero = is_zero(block, sizes[i]);
        gs_memory_free(block);
        assert_true(is_aligned);
        assert_true(was_zero);
    }
}

static void fails_where_no_size_can_express_the_request(void **state) {
    (void)state;
    int somewhere = 0;
    int *block = &somewhere;
    assert_int_equal(gs_memory_new(&block, SIZE_MAX, 2, "a test"), GSYNC_ERR_MEMORY);
    assert_int_equal(gs_memory_new(&block, SIZE_MAX / 2 + 2, 2, "a test"), GSYNC_ERR_MEMORY);
    assert_int_equal(gs_memory_new(&block, SIZE_MAX, 1, "a test"), GSYNC_ERR_MEMORY);
    assert_int_equal(gs_memory_new_aligned(&block, SIZE_MAX, "a test"), GSYNC_ERR_MEMORY);
    assert_int_equal(gs_memory_new_aligned(&block, SIZE_MAX - 63, "a test"), GSYNC_ERR_MEMORY);
    assert_int_equal(gs_memory_new_aligned(&block, PTRDIFF_MAX, "a test"), GSYNC_ERR_MEMORY);
    assert_ptr_equal(block, &somewhere);
}

static void names_what_there_was_no_memory_for(void **state) {
    (void)state;
    int *block = NULL;
    alloc_fault_fail_nth(1);
    const gsync_status status = gs_memory_new(&block, 12, 34, "the list of gradients");
    alloc_fault_fail_nth(0);
    assert_int_equal(status, GSYNC_ERR_MEMORY);
    assert_string_equal(gsync_last_error(), "out of memory: 12 x 34 bytes for the list of gradients");
}

static void leaves_the_output_alone_when_it_fails(void **state) {
    (void)state;
    int somewhere = 0;
    int *block = &somewhere;
    alloc_fault_fail_nth(1);
    assert_int_equal(gs_memory_new(&block, 4, sizeof *block, "a test"), GSYNC_ERR_MEMORY);
    alloc_fault_fail_nth(1);
    assert_int_equal(gs_memory_new_aligned(&block, 4, "a test"), GSYNC_ERR_MEMORY);
    alloc_fault_fail_nth(0);
    assert_ptr_equal(block, &somewhere);
}

static void keeps_every_item_while_a_list_grows(void **state) {
    (void)state;
    uint32_t *items = NULL;
    size_t capacity = 0;
    bool was_zero = true;
    for (uint32_t count = 0; count < 1000; count++) {
        assert_int_equal(gs_memory_grow(&items, &capacity, count, sizeof *items, "a test"), GSYNC_OK);
        assert_true(capacity > count);
        was_zero = was_zero && items[count] == 0;
        items[count] = count + 1;
    }
    bool are_kept = true;
    for (uint32_t i = 0; i < 1000; i++) {
        are_kept = are_kept && items[i] == i + 1;
    }
    gs_memory_free(items);
    assert_true(was_zero);
    assert_true(are_kept);
}

static void grows_a_list_seldom(void **state) {
    (void)state;
    uint32_t *items = NULL;
    size_t capacity = 0;
    alloc_fault_fail_nth(0);
    for (size_t count = 0; count < 100000; count++) {
        assert_int_equal(gs_memory_grow(&items, &capacity, count, sizeof *items, "a test"), GSYNC_OK);
    }
    const size_t allocations = alloc_fault_count();
    gs_memory_free(items);
    assert_in_range(allocations, 1, 20);
}

static void keeps_the_old_list_when_it_cannot_grow(void **state) {
    (void)state;
    uint32_t *items = NULL;
    size_t capacity = 0;
    assert_int_equal(gs_memory_grow(&items, &capacity, 0, sizeof *items, "a test"), GSYNC_OK);
    items[0] = 7;
    uint32_t *const old = items;
    const size_t old_capacity = capacity;
    alloc_fault_fail_nth(1);
    const gsync_status status = gs_memory_grow(&items, &capacity, capacity, sizeof *items, "a test");
    alloc_fault_fail_nth(0);
    const uint32_t kept = old[0];
    gs_memory_free(old);
    assert_int_equal(status, GSYNC_ERR_MEMORY);
    assert_ptr_equal(items, old);
    assert_int_equal(capacity, old_capacity);
    assert_int_equal(kept, 7);
}

static void refuses_to_grow_beyond_what_a_size_can_express(void **state) {
    (void)state;
    uint32_t item = 0;
    uint32_t *items = &item;
    size_t capacity = PTRDIFF_MAX / sizeof item;
    assert_int_equal(gs_memory_grow(&items, &capacity, capacity, sizeof item, "a test"), GSYNC_ERR_MEMORY);
    assert_ptr_equal(items, &item);
    assert_true(capacity == PTRDIFF_MAX / sizeof item);
}

static void gives_everything_back(void **state) {
    (void)state;
    const long before = alloc_fault_live();
    void *block = NULL;
    size_t capacity = 0;
    assert_int_equal(gs_memory_new(&block, 3, 5, "a test"), GSYNC_OK);
    gs_memory_free(block);
    assert_int_equal(gs_memory_new_aligned(&block, 100, "a test"), GSYNC_OK);
    gs_memory_free(block);
    block = NULL;
    assert_int_equal(gs_memory_grow(&block, &capacity, 0, 8, "a test"), GSYNC_OK);
    assert_int_equal(gs_memory_grow(&block, &capacity, capacity, 8, "a test"), GSYNC_OK);
    gs_memory_free(block);
    gs_memory_free(NULL);
    assert_int_equal(alloc_fault_live(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_zeroed_memory),
        cmocka_unit_test(gives_nothing_for_an_empty_request),
        cmocka_unit_test(gives_zeroed_memory_that_starts_a_cache_line),
        cmocka_unit_test(fails_where_no_size_can_express_the_request),
        cmocka_unit_test(names_what_there_was_no_memory_for),
        cmocka_unit_test(leaves_the_output_alone_when_it_fails),
        cmocka_unit_test(keeps_every_item_while_a_list_grows),
        cmocka_unit_test(grows_a_list_seldom),
        cmocka_unit_test(keeps_the_old_list_when_it_cannot_grow),
        cmocka_unit_test(refuses_to_grow_beyond_what_a_size_can_express),
        cmocka_unit_test(gives_everything_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
