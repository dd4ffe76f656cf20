/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A struct as an older, this, and a newer library know it. */
typedef struct older {
    size_t struct_size;
    int first;
    int second;
} older;

typedef struct current {
    size_t struct_size;
    int first;
    int second;
    double third;
} current;

typedef struct newer {
    size_t struct_size;
    int first;
    int second;
    double third;
    void *fourth;
} newer;

static void NULL_means_all_defaults(void **state) {
    (void)state;
    current to = {9, 9, 9, 9};
    assert_int_equal(gs_options_copy(&to, sizeof to, NULL, "s"), GSYNC_OK);
    const current zero = {0};
    assert_memory_equal(&to, &zero, sizeof to);
}

static void a_struct_of_the_same_size_is_copied_whole(void **state) {
    (void)state;
    const current from = {sizeof from, 1, 2, 3.5};
    current to;
    assert_int_equal(gs_options_copy(&to, sizeof to, &from, "s"), GSYNC_OK);
    assert_memory_equal(&to, &from, sizeof to);
}

static void members_that_an_older_caller_does_not_know_are_default(void **state) {
    (void)state;
    /* What lies behind the caller's struct is not read. */
    const struct {
        older known;
        double behind;
    } from = {{sizeof(older), 1, 2}, 99.0};
    current to = {0, 0, 0, 7.0};
    assert_int_equal(gs_options_copy(&to, sizeof to, &from, "s"), GSYNC_OK);
    assert_int_equal(to.first, 1);
    assert_int_equal(to.second, 2);
    assert_true(to.third == 0.0);
    assert_int_equal(to.struct_size, sizeof to);
}

static void a_newer_caller_is_accepted_while_it_leaves_new_members_alone(void **state) {
    (void)state;
    const newer from = {sizeof from, 1, 2, 3.5, NULL};
    current to;
    assert_int_equal(gs_options_copy(&to, sizeof to, &from, "s"), GSYNC_OK);
    assert_true(to.third == 3.5);
    assert_int_equal(to.struct_size, sizeof to);
}

static void a_new_member_that_is_set_is_refused_by_its_place(void **state) {
    (void)state;
    newer from = {sizeof from, 1, 2, 3.5, NULL};
    current to;
    from.fourth = &from;
    assert_int_equal(gs_options_copy(&to, sizeof to, &from, "gsync_things"), GSYNC_ERR_ARGUMENT);
    assert_non_null(strstr(gsync_last_error(), "gsync_things"));
    assert_non_null(strstr(gsync_last_error(), gsync_version()));
}

static void a_struct_without_its_initializer_is_refused_by_name(void **state) {
    (void)state;
    const size_t nonsense[] = {0, 1, sizeof(size_t) - 1, 65537, SIZE_MAX};
    for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
        current from = {nonsense[i], 1, 2, 3.5};
        current to;
        assert_int_equal(gs_options_copy(&to, sizeof to, &from, "gsync_things"), GSYNC_ERR_ARGUMENT);
        assert_non_null(strstr(gsync_last_error(), "gsync_things.struct_size"));
        assert_int_equal(gs_options_check_output(&from, "gsync_things"), GSYNC_ERR_ARGUMENT);
        assert_int_equal(gs_options_give(&from, &to, sizeof to, "gsync_things"), GSYNC_ERR_ARGUMENT);
        assert_true(from.first == 1 && from.third == 3.5);
    }
}

static void an_output_of_NULL_is_no_output(void **state) {
    (void)state;
    const current from = {sizeof from, 1, 2, 3.5};
    assert_int_equal(gs_options_check_output(NULL, "s"), GSYNC_OK);
    assert_int_equal(gs_options_give(NULL, &from, sizeof from, "s"), GSYNC_OK);
}

static void an_older_caller_gets_the_members_it_knows(void **state) {
    (void)state;
    const current from = {sizeof from, 1, 2, 3.5};
    struct {
        older known;
        double behind;
    } to = {{sizeof(older), 0, 0}, 99.0};
    assert_int_equal(gs_options_give(&to, &from, sizeof from, "s"), GSYNC_OK);
    assert_true(to.known.first == 1 && to.known.second == 2 && to.behind == 99.0);
    assert_int_equal(to.known.struct_size, sizeof(older));
}

static void a_newer_caller_keeps_what_it_had_in_the_rest(void **state) {
    (void)state;
    const current from = {sizeof from, 1, 2, 3.5};
    newer to = {sizeof to, 0, 0, 0, NULL};
    to.fourth = &to;
    assert_int_equal(gs_options_give(&to, &from, sizeof from, "s"), GSYNC_OK);
    assert_true(to.first == 1 && to.third == 3.5 && to.fourth == &to);
    assert_int_equal(to.struct_size, sizeof to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(NULL_means_all_defaults),
        cmocka_unit_test(a_struct_of_the_same_size_is_copied_whole),
        cmocka_unit_test(members_that_an_older_caller_does_not_know_are_default),
        cmocka_unit_test(a_newer_caller_is_accepted_while_it_leaves_new_members_alone),
        cmocka_unit_test(a_new_member_that_is_set_is_refused_by_its_place),
        cmocka_unit_test(a_struct_without_its_initializer_is_refused_by_name),
        cmocka_unit_test(an_output_of_NULL_is_no_output),
        cmocka_unit_test(an_older_caller_gets_the_members_it_knows),
        cmocka_unit_test(a_newer_caller_keeps_what_it_had_in_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
