/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: wrap=posix_fallocate,malloc,calloc,realloc,aligned_alloc,posix_memalign,free */

#include "collective/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h needs the headers above and does not include them. */
#include <cmocka.h>

enum { BYTES = 10000 };

int __real_posix_fallocate(int file, off_t offset, off_t length);
int __wrap_posix_fallocate(int file, off_t offset, off_t length);

static int fallocate_error;
static int interruptions; /* calls that a signal ends before one succeeds */

int __wrap_posix_fallocate(int file, off_t offset, off_t length) {
    if (interruptions > 0) {
        interruptions--;
        return EINTR;
    }
    return fallocate_error != 0 ? fallocate_error : __real_posix_fallocate(file, offset, length);
}

static int count_files(void) {
    int count = 0;
    for (int file = 0; file < 256; file++) {
        count += fcntl(file, F_GETFD) != -1;
    }
    return count;
}

/* The caller can do something about it: a smaller model, other processes ended. */
static void exhausted_memory_is_no_broken_transport(void **state) {
    (void)state;
    static const int errors[] = {ENOSPC, ENOMEM};
    for (int kind = 0; kind < GS_SHARED_MEMORY_KINDS; kind++) {
        for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
            gs_segment segment;
            const int files = count_files();
            fallocate_error = errors[i];
            assert_int_equal(gs_shared_memory_create((gs_shared_memory_kind)kind, BYTES, &segment), GSYNC_ERR_MEMORY);
            fallocate_error = 0;
            assert_null(segment.base);
            assert_int_equal(count_files(), files);
        }
    }
}

static void signals_do_not_end_an_allocation(void **state) {
    (void)state;
    for (int kind = 0; kind < GS_SHARED_MEMORY_KINDS; kind++) {
        gs_segment segment;
        interruptions = 5;
        assert_int_equal(gs_shared_memory_create((gs_shared_memory_kind)kind, BYTES, &segment), GSYNC_OK);
        gs_shared_memory_release(&segment);
    }
}

/* A trainer that closed its standard input makes 0 the number of the next file. */
static void file_number_0_is_closed_like_any_other(void **state) {
    (void)state;
    const int input = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    for (int kind = 0; kind < GS_SHARED_MEMORY_KINDS; kind++) {
        gs_segment segment;
        assert_int_equal(gs_shared_memory_create((gs_shared_memory_kind)kind, BYTES, &segment), GSYNC_OK);
        gs_shared_memory_release(&segment);
        assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
    }
    if (input >= 0) {
        dup2(input, STDIN_FILENO);
        close(input);
    }
}

/* The name may mean something else by now: its owner gave up, and the number of its file is in use again. */
static void a_file_of_another_size_is_not_written_to(void **state) {
    (void)state;
    gs_segment segment;
    char token[GS_TOKEN_MAX];
    FILE *other = tmpfile();
    assert_non_null(other);
    assert_int_equal(fwrite("precious", 1, 8, other), 8);
    assert_int_equal(fflush(other), 0);
    snprintf(token, sizeof token, "/proc/%ld/fd/%d", (long)getpid(), fileno(other));
    const int files = count_files();
    assert_int_equal(gs_shared_memory_attach(token, BYTES, &segment), GSYNC_ERR_TRANSPORT);
    assert_null(segment.base);
    assert_int_equal(count_files(), files);
    fclose(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exhausted_memory_is_no_broken_transport),
        cmocka_unit_test(signals_do_not_end_an_allocation),
        cmocka_unit_test(file_number_0_is_closed_like_any_other),
        cmocka_unit_test(a_file_of_another_size_is_not_written_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
