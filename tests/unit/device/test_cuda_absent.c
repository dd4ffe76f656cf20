/* SPDX-License-Identifier: Apache-2.0 */

/* The runtime that is in the library itself, on a machine without a GPU. Skipped where there is one. */

#include "device/device_cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void without_a_gpu_a_device_is_refused_in_the_runtimes_words(void **state) {
    gs_cuda *cuda = NULL;
    (void)state;
    if (gs_cuda_visible_count() > 0) {
        skip();
    }
    assert_int_equal(gs_cuda_open(&cuda), GSYNC_ERR_UNSUPPORTED);
    assert_null(cuda);
    assert_non_null(strstr(gsync_last_error(), "CUDA: looking for a GPU: "));
    assert_non_null(strstr(gsync_last_error(), "(cudaError"));
}

static void without_a_gpu_all_memory_is_the_hosts(void **state) {
    int device = 0;
    (void)state;
    if (gs_cuda_visible_count() > 0) {
        skip();
    }
    assert_int_equal(gs_cuda_place_of(&device, &device), GS_PLACE_HOST);
    assert_int_equal(device, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_gpu_a_device_is_refused_in_the_runtimes_words),
        cmocka_unit_test(without_a_gpu_all_memory_is_the_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
