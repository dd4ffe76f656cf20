/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void keeps_the_words_of_the_last_failure(void **state) {
    (void)state;
    gs_fail(GSYNC_ERR_STATE, "an earlier one");
    gs_fail(GSYNC_ERR_TIMEOUT, "rank %d: \"%s\" did not arrive", 3, "layer1.weight");
    assert_string_equal(gsync_last_error(), "rank 3: \"layer1.weight\" did not arrive");
}

static void returns_the_status_it_was_given(void **state) {
    (void)state;
    assert_int_equal(gs_fail(GSYNC_ERR_MISMATCH, "words"), GSYNC_ERR_MISMATCH);
}

static void puts_words_in_front_of_what_was_discovered(void **state) {
    (void)state;
    gs_fail(GSYNC_ERR_TRANSPORT, "connection reset");
    gs_fail_prefix("rank %d: ", 2);
    gs_fail_prefix("commit: ");
    assert_string_equal(gsync_last_error(), "commit: rank 2: connection reset");
}

static void may_quote_the_last_failure_in_the_next(void **state) {
    (void)state;
    gs_fail(GSYNC_ERR_TRANSPORT, "connection reset");
    gs_fail(GSYNC_ERR_ABORTED, "rank 1 gave up: %s", gsync_last_error());
    assert_string_equal(gsync_last_error(), "rank 1 gave up: connection reset");
    gs_fail_prefix("%s; again: ", gsync_last_error());
    assert_string_equal(gsync_last_error(),
                        "rank 1 gave up: connection reset; again: rank 1 gave up: connection reset");
}

static void keeps_a_text_that_just_fits(void **state) {
    (void)state;
    char words[GS_FAIL_TEXT_MAX];
    memset(words, 'x', sizeof words - 1);
    words[sizeof words - 1] = '\0';
    gs_fail(GSYNC_ERR_ARGUMENT, "%s", words);
    assert_string_equal(gsync_last_error(), words);
    gs_fail(GSYNC_ERR_ARGUMENT, "%s", words + 2);
    gs_fail_prefix("xx");
    assert_string_equal(gsync_last_error(), words);
}

static void marks_a_text_that_was_cut(void **state) {
    (void)state;
    char words[2 * GS_FAIL_TEXT_MAX];
    char expected[GS_FAIL_TEXT_MAX];
    memset(words, 'x', sizeof words - 1);
    words[sizeof words - 1] = '\0';
    memset(expected, 'x', sizeof expected);
    memcpy(expected + sizeof expected - 4, "...", 4);
    gs_fail(GSYNC_ERR_ARGUMENT, "%s", words);
    assert_string_equal(gsync_last_error(), expected);
    gs_fail(GSYNC_ERR_ARGUMENT, "end");
    gs_fail_prefix("%s", words);
    assert_string_equal(gsync_last_error(), expected);
    gs_fail(GSYNC_ERR_ARGUMENT, "%s", words + sizeof words - GS_FAIL_TEXT_MAX);
    gs_fail_prefix("x");
    assert_string_equal(gsync_last_error(), expected);
}

static void cuts_at_every_length_without_harm(void **state) {
    (void)state;
    char words[GS_FAIL_TEXT_MAX + 8];
    memset(words, 'x', sizeof words - 1);
    words[sizeof words - 1] = '\0';
    for (size_t length = GS_FAIL_TEXT_MAX - 8; length < GS_FAIL_TEXT_MAX + 8; length++) {
        gs_fail(GSYNC_ERR_ARGUMENT, "%s", words + sizeof words - 1 - length);
        gs_fail_prefix("%s", words + sizeof words - 1 - length);
        assert_int_equal(strlen(gsync_last_error()), GS_FAIL_TEXT_MAX - 1);
    }
}

static void *fail_on_another_thread(void *copy) {
    char *const texts = copy;
    strcpy(texts, gsync_last_error());
    gs_fail(GSYNC_ERR_INTERNAL, "theirs");
    strcat(texts, gsync_last_error());
    return NULL;
}

static void keeps_the_words_of_each_thread_apart(void **state) {
    (void)state;
    char theirs[2 * GS_FAIL_TEXT_MAX];
    pthread_t thread;
    gs_fail(GSYNC_ERR_INTERNAL, "mine");
    assert_int_equal(pthread_create(&thread, NULL, fail_on_another_thread, theirs), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(gsync_last_error(), "mine");
    assert_string_equal(theirs, "theirs"); /* and "" before their first failure */
}

static int calls;

static gsync_status count_call(gsync_status status) {
    calls++;
    return status;
}

static gsync_status try_twice(gsync_status first, gsync_status second) {
    GS_TRY(count_call(first));
    GS_TRY(count_call(second));
    return GSYNC_OK;
}

static gsync_status try_or_clean_up(gsync_status first, gsync_status second, int *cleanups) {
    gsync_status status = GSYNC_OK;
    GS_TRY_OR(count_call(first), clean_up);
    GS_TRY_OR(count_call(second), clean_up);
    return GSYNC_OK;
clean_up:
    (*cleanups)++;
    return status;
}

static void passes_a_failure_on_at_once(void **state) {
    (void)state;
    calls = 0;
    assert_int_equal(try_twice(GSYNC_ERR_STATE, GSYNC_ERR_MEMORY), GSYNC_ERR_STATE);
    assert_int_equal(calls, 1);
    assert_int_equal(try_twice(GSYNC_OK, GSYNC_ERR_MEMORY), GSYNC_ERR_MEMORY);
    assert_int_equal(try_twice(GSYNC_OK, GSYNC_OK), GSYNC_OK);
}

static void cleans_up_before_it_passes_a_failure_on(void **state) {
    (void)state;
    int cleanups = 0;
    assert_int_equal(try_or_clean_up(GSYNC_OK, GSYNC_OK, &cleanups), GSYNC_OK);
    assert_int_equal(cleanups, 0);
    assert_int_equal(try_or_clean_up(GSYNC_OK, GSYNC_ERR_MEMORY, &cleanups), GSYNC_ERR_MEMORY);
    assert_int_equal(cleanups, 1);
}

static void names_every_status(void **state) {
    (void)state;
    static const struct {
        gsync_status status;
        const char *name;
    } named[] = {
        {GSYNC_OK, "GSYNC_OK"},
        {GSYNC_ERR_ARGUMENT, "GSYNC_ERR_ARGUMENT"},
        {GSYNC_ERR_STATE, "GSYNC_ERR_STATE"},
        {GSYNC_ERR_MISMATCH, "GSYNC_ERR_MISMATCH"},
        {GSYNC_ERR_INCOMPLETE, "GSYNC_ERR_INCOMPLETE"},
        {GSYNC_ERR_ALREADY_READY, "GSYNC_ERR_ALREADY_READY"},
        {GSYNC_ERR_UNKNOWN_GRADIENT, "GSYNC_ERR_UNKNOWN_GRADIENT"},
        {GSYNC_ERR_CHANGED, "GSYNC_ERR_CHANGED"},
        {GSYNC_ERR_UNSUPPORTED, "GSYNC_ERR_UNSUPPORTED"},
        {GSYNC_ERR_NONFINITE, "GSYNC_ERR_NONFINITE"},
        {GSYNC_ERR_DIVERGED, "GSYNC_ERR_DIVERGED"},
        {GSYNC_ERR_MEMORY, "GSYNC_ERR_MEMORY"},
        {GSYNC_ERR_TIMEOUT, "GSYNC_ERR_TIMEOUT"},
        {GSYNC_ERR_PEER_LOST, "GSYNC_ERR_PEER_LOST"},
        {GSYNC_ERR_ABORTED, "GSYNC_ERR_ABORTED"},
        {GSYNC_ERR_TRANSPORT, "GSYNC_ERR_TRANSPORT"},
        {GSYNC_ERR_INTERNAL, "GSYNC_ERR_INTERNAL"},
    };
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        assert_string_equal(gsync_status_name(named[i].status), named[i].name);
    }
}

static void has_words_even_for_a_number_that_is_no_status(void **state) {
    (void)state;
    assert_string_equal(gsync_status_name((gsync_status)-11), "an unknown gsync_status");
    assert_string_equal(gsync_status_name((gsync_status)1), "an unknown gsync_status");
}

/* Numbers are stored in logs and compared across versions: they are never reused. */
static void keeps_the_numbers_of_the_statuses(void **state) {
    (void)state;
    assert_int_equal(GSYNC_OK, 0);
    assert_int_equal(GSYNC_ERR_ARGUMENT, -1);
    assert_int_equal(GSYNC_ERR_UNSUPPORTED, -8);
    assert_int_equal(GSYNC_ERR_MEMORY, -20);
    assert_int_equal(GSYNC_ERR_TIMEOUT, -40);
    assert_int_equal(GSYNC_ERR_ABORTED, -42);
    assert_int_equal(GSYNC_ERR_TRANSPORT, -60);
    assert_int_equal(GSYNC_ERR_INTERNAL, -61);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_the_words_of_the_last_failure),
        cmocka_unit_test(returns_the_status_it_was_given),
        cmocka_unit_test(puts_words_in_front_of_what_was_discovered),
        cmocka_unit_test(may_quote_the_last_failure_in_the_next),
        cmocka_unit_test(keeps_a_text_that_just_fits),
        cmocka_unit_test(marks_a_text_that_was_cut),
        cmocka_unit_test(cuts_at_every_length_without_harm),
        cmocka_unit_test(keeps_the_words_of_each_thread_apart),
        cmocka_unit_test(passes_a_failure_on_at_once),
        cmocka_unit_test(cleans_up_before_it_passes_a_failure_on),
        cmocka_unit_test(names_every_status),
        cmocka_unit_test(has_words_even_for_a_number_that_is_no_status),
        cmocka_unit_test(keeps_the_numbers_of_the_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
