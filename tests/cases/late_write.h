/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LATE_WRITE_H
#define LATE_WRITE_H

/*
 * A trainer that writes a gradient after its mark is in a data race with the library, and ThreadSanitizer says so.
 * There the tests of it let the caller's thread do the library's reading, which leaves the mistake and takes away the
 * race.
 */

#include <gradsync/gradsync.h>

#if defined(__SANITIZE_THREAD__)
#define LATE_WRITE_PROGRESS GSYNC_PROGRESS_CALLER
#define LATE_WRITE_IS_A_RACE 1
#else
#define LATE_WRITE_PROGRESS GSYNC_PROGRESS_AUTO
#define LATE_WRITE_IS_A_RACE 0
#endif

#define LATE_WRITE_TEST(function) RANKS_TEST_WITH(function, .progress = LATE_WRITE_PROGRESS)

#endif
