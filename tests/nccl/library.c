/* SPDX-License-Identifier: Apache-2.0 */

/*
 * GS-91: which NCCL is found at run time, and what is said of it. One program for all cases: each is a process with a
 * libnccl.so.2 of its own in LD_LIBRARY_PATH, see CMakeLists.txt. Linked with no NCCL.
 */

#include "collective/library_nccl.h"

#include "collective/collective_nccl.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What the case expects: a status, and parts of the text. */
typedef struct expectation {
    const char *name;
    gsync_status status;
    const char *says;
    const char *says_too;
} expectation;

static const expectation expectations[] = {
    {"same", GSYNC_OK, "(header " HEADER_VERSION ") from ", "same/libnccl.so.2"},
    {"newer", GSYNC_OK, "NCCL 2.99.0 (header " HEADER_VERSION ") from ", "newer/libnccl.so.2"},
    {"older", GSYNC_OK, "NCCL 2.17.1 (header " HEADER_VERSION ") from ", "without ncclCommSplit, without ncclAlltoAll"},
    {"ancient", GSYNC_ERR_UNSUPPORTED, "is version 2.8.3, this library was built for " HEADER_VERSION,
     "ancient/libnccl.so.2"},
    {"other_major", GSYNC_ERR_UNSUPPORTED, "is version 3.1.0", "same major version"},
    {"garbage", GSYNC_ERR_UNSUPPORTED, "is version -", "garbage/libnccl.so.2"},
    {"refusing", GSYNC_ERR_UNSUPPORTED, "does not tell its version (5)", "refusing/libnccl.so.2"},
    {"lacking", GSYNC_ERR_UNSUPPORTED, "has no ncclAllGather", "lacking/libnccl.so.2"},
    {"unreadable", GSYNC_ERR_UNSUPPORTED, "no NCCL (", "unreadable/libnccl.so.2"},
    {"absent", GSYNC_ERR_UNSUPPORTED, "no NCCL (", "libnccl.so.2"},
};

static const expectation *expected;

static void finds_what_is_there_and_says_what_it_is(void **state) {
    (void)state;
    const gs_nccl_library *library = NULL;
    assert_int_equal(gs_nccl_library_find(&library), expected->status);
    assert_non_null(strstr(gs_nccl_describe(), expected->says));
    assert_non_null(strstr(gs_nccl_describe(), expected->says_too));
    if (expected->status != GSYNC_OK) {
        assert_string_equal(gsync_last_error(), gs_nccl_describe());
    } else {
        assert_non_null(library);
        assert_int_equal(library->comm_split == NULL, strcmp(expected->name, "older") == 0);
    }
}

static void the_host_does_without_it(void **state) {
    (void)state;
    gsync_comm *comm = NULL;
    float value = 3;
    const gsync_comm_options options = {.struct_size = sizeof options, .transport = GSYNC_TRANSPORT_SINGLE};
    assert_int_equal(gsync_comm_create(&comm, &options), GSYNC_OK);
    assert_int_equal(gsync_allreduce(comm, &value, 1, GSYNC_FLOAT32, GSYNC_MEAN), GSYNC_OK);
    assert_true(value == 3);
    gsync_comm_destroy(&comm);
}

int main(int argument_count, char **arguments) {
    for (size_t i = 0; argument_count == 2 && i < sizeof expectations / sizeof *expectations; i++) {
        if (strcmp(arguments[1], expectations[i].name) == 0) {
            expected = &expectations[i];
        }
    }
    if (expected == NULL) {
        return 2;
    }
    if (strcmp(expected->name, "absent") == 0 && dlopen("libnccl.so.2", RTLD_LAZY) != NULL) {
        return 77; /* skipped: this machine has one where everybody looks */
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_is_there_and_says_what_it_is),
        cmocka_unit_test(the_host_does_without_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
