/* SPDX-License-Identifier: Apache-2.0 */
#include "api/scaler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The scaler's calls, with the test in the place of the reducers. */

static gsync_scaler *scaler_at(double scale) {
    gsync_scaler *scaler = NULL;
    gsync_scaler_options options = GSYNC_SCALER_OPTIONS_INIT;
    options.scale = scale;
    assert_int_equal(gsync_scaler_create(&scaler, &options), GSYNC_OK);
    return scaler;
}

static void finish_step(gsync_scaler *scaler, bool found_inf) {
    gs_scaler_open_window(scaler);
    gs_scaler_close_window(scaler, true, found_inf);
}

static void expect_refused(gsync_status status, gsync_status expected, const char *part) {
    assert_int_equal(status, expected);
    assert_non_null(strstr(gsync_last_error(), part));
}

static void one_update_belongs_to_one_step(void **state) {
    (void)state;
    gsync_scaler *scaler = scaler_at(8.0);
    expect_refused(gsync_scaler_update(scaler), GSYNC_ERR_STATE, "finished");
    finish_step(scaler, true);
    assert_true(gsync_scaler_scale(scaler) == 8.0);
    assert_int_equal(gsync_scaler_update(scaler), GSYNC_OK);
    assert_true(gsync_scaler_scale(scaler) == 4.0);
    expect_refused(gsync_scaler_update(scaler), GSYNC_ERR_STATE, "finished");
    assert_true(gsync_scaler_scale(scaler) == 4.0);
    gsync_scaler_destroy(&scaler);
    assert_null(scaler);
}

static void the_scale_is_frozen_while_any_window_is_open(void **state) {
    (void)state;
    gsync_scaler *scaler = scaler_at(8.0);
    gsync_scaler_state before = GSYNC_SCALER_STATE_INIT;
    assert_int_equal(gsync_scaler_get_state(scaler, &before), GSYNC_OK);
    finish_step(scaler, true);
    gs_scaler_open_window(scaler); /* of another reducer */
    expect_refused(gsync_scaler_update(scaler), GSYNC_ERR_STATE, "window");
    expect_refused(gsync_scaler_set_state(scaler, &before), GSYNC_ERR_STATE, "window");
    assert_true(gsync_scaler_scale(scaler) == 8.0);
    gs_scaler_close_window(scaler, true, false);
    assert_int_equal(gsync_scaler_update(scaler), GSYNC_OK);
    assert_true(gsync_scaler_scale(scaler) == 4.0);
    gsync_scaler_destroy(&scaler);
}

static void one_overflow_among_several_reducers_skips_the_step(void **state) {
    (void)state;
    gsync_scaler *scaler = scaler_at(8.0);
    finish_step(scaler, false);
    finish_step(scaler, true);
    finish_step(scaler, false);
    assert_int_equal(gsync_scaler_update(scaler), GSYNC_OK);
    assert_true(gsync_scaler_scale(scaler) == 4.0); /* once */
    finish_step(scaler, false);
    assert_int_equal(gsync_scaler_update(scaler), GSYNC_OK);
    assert_true(gsync_scaler_scale(scaler) == 4.0); /* and forgotten then */
    gsync_scaler_destroy(&scaler);
}

static void a_window_without_a_result_is_no_step(void **state) {
    (void)state;
    gsync_scaler *scaler = scaler_at(8.0);
    gs_scaler_open_window(scaler);
    gs_scaler_close_window(scaler, false, true);
    expect_refused(gsync_scaler_update(scaler), GSYNC_ERR_STATE, "finished");
    finish_step(scaler, false);
    assert_int_equal(gsync_scaler_update(scaler), GSYNC_OK);
    assert_true(gsync_scaler_scale(scaler) == 8.0);
    gsync_scaler_destroy(&scaler);
}

static void divergence_is_a_status_of_its_own_and_the_scaler_goes_on(void **state) {
    (void)state;
    gsync_scaler *scaler = NULL;
    gsync_scaler_options options = GSYNC_SCALER_OPTIONS_INIT;
    options.scale = 1.0;
    options.skips_max = 2;
    assert_int_equal(gsync_scaler_create(&scaler, &options), GSYNC_OK);
    finish_step(scaler, true);
    assert_int_equal(gsync_scaler_update(scaler), GSYNC_OK);
    for (int i = 0; i < 2; i++) {
        finish_step(scaler, true);
        expect_refused(gsync_scaler_update(scaler), GSYNC_ERR_DIVERGED, "in a row");
        assert_true(gsync_scaler_scale(scaler) == 1.0);
    }
    finish_step(scaler, false);
    assert_int_equal(gsync_scaler_update(scaler), GSYNC_OK);
    gsync_scaler_destroy(&scaler);
}

static void a_restored_scaler_goes_on_as_the_saved_one(void **state) {
    (void)state;
    gsync_scaler *saved = scaler_at(8.0);
    gsync_scaler *restored = scaler_at(0);
    gsync_scaler_state at = GSYNC_SCALER_STATE_INIT;
    for (int step = 0; step < 30; step++) {
        finish_step(saved, step % 7 == 0);
        assert_int_equal(gsync_scaler_update(saved), GSYNC_OK);
    }
    assert_int_equal(gsync_scaler_get_state(saved, &at), GSYNC_OK);
    assert_int_equal(at.steps, 30);
    assert_int_equal(at.steps_skipped, 5);
    finish_step(restored, true); /* of a history that is given up */
    assert_int_equal(gsync_scaler_set_state(restored, &at), GSYNC_OK);
    expect_refused(gsync_scaler_update(restored), GSYNC_ERR_STATE, "finished");
    for (int step = 0; step < 4100; step++) {
        finish_step(saved, step == 50);
        finish_step(restored, step == 50);
        assert_int_equal(gsync_scaler_update(saved), GSYNC_OK);
        assert_int_equal(gsync_scaler_update(restored), GSYNC_OK);
        assert_true(gsync_scaler_scale(saved) == gsync_scaler_scale(restored));
    }
    gsync_scaler_destroy(&saved);
    gsync_scaler_destroy(&restored);
}

static void null_and_unfinished_arguments_are_refused(void **state) {
    (void)state;
    gsync_scaler *scaler = scaler_at(8.0);
    gsync_scaler_state at = GSYNC_SCALER_STATE_INIT;
    gsync_scaler_options options = GSYNC_SCALER_OPTIONS_INIT;
    gsync_scaler *none = NULL;
    options.scale = 3.0;
    expect_refused(gsync_scaler_create(&none, &options), GSYNC_ERR_ARGUMENT, "gsync_scaler_options.scale");
    assert_null(none);
    options.struct_size = 0;
    expect_refused(gsync_scaler_create(&none, &options), GSYNC_ERR_ARGUMENT, "struct_size");
    expect_refused(gsync_scaler_create(NULL, NULL), GSYNC_ERR_ARGUMENT, "NULL");
    expect_refused(gsync_scaler_update(NULL), GSYNC_ERR_ARGUMENT, "NULL");
    expect_refused(gsync_scaler_get_state(NULL, &at), GSYNC_ERR_ARGUMENT, "NULL");
    expect_refused(gsync_scaler_get_state(scaler, NULL), GSYNC_ERR_ARGUMENT, "NULL");
    expect_refused(gsync_scaler_set_state(NULL, &at), GSYNC_ERR_ARGUMENT, "NULL");
    expect_refused(gsync_scaler_set_state(scaler, NULL), GSYNC_ERR_ARGUMENT, "NULL");
    at.struct_size = 3;
    expect_refused(gsync_scaler_get_state(scaler, &at), GSYNC_ERR_ARGUMENT, "struct_size");
    expect_refused(gsync_scaler_set_state(scaler, &at), GSYNC_ERR_ARGUMENT, "struct_size");
    assert_true(gsync_scaler_scale(scaler) == 8.0);
    assert_true(gsync_scaler_scale(NULL) == 1.0);
    gsync_scaler_destroy(NULL);
    gsync_scaler_destroy(&none);
    gsync_scaler_destroy(&scaler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_update_belongs_to_one_step),
        cmocka_unit_test(the_scale_is_frozen_while_any_window_is_open),
        cmocka_unit_test(one_overflow_among_several_reducers_skips_the_step),
        cmocka_unit_test(a_window_without_a_result_is_no_step),
        cmocka_unit_test(divergence_is_a_status_of_its_own_and_the_scaler_goes_on),
        cmocka_unit_test(a_restored_scaler_goes_on_as_the_saved_one),
        cmocka_unit_test(null_and_unfinished_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
