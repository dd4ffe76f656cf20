/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RANKS_BOARD_H
#define RANKS_BOARD_H

/*
 * Where the ranks of a test program meet and note what failed: memory that all of them see, of this process or shared
 * by the processes that one mpirun started on this host. It is independent of the library under test, whose faults it
 * has to report.
 *
 * Per test and rank: enter, any number of meets and notes, leave, finish. Entries alternate between two sets, since a
 * rank can be at most one test ahead of another.
 */

#include "ranks.h"

#define RANKS_NOTES_MAX 4096

typedef struct ranks_board ranks_board;

/* NULL, with errno, if there is no memory. */
ranks_board *ranks_board_private(int world);

/* name begins with '/' and is the same in all processes, and no other program's. Waits until all have it. */
ranks_board *ranks_board_shared(const char *name, int world, int rank);

void ranks_board_close(ranks_board *board);

/* Begins a test on a clean entry; returns when every rank has entered. */
void ranks_board_enter(ranks_board *board, int rank);
/* The body has ended; returns when all have. */
void ranks_board_leave(ranks_board *board, int rank);
/* Nothing of the test is left on this rank; returns when that is true of all. The notes stay until the next enter. */
void ranks_board_finish(ranks_board *board, int rank);

/* See ranks_exchange. -1, or the rank that left its body instead of meeting. */
int ranks_board_meet(ranks_board *board, int rank, const void *mine, size_t bytes, void *all);

/* Any thread. Adds a line to this rank's notes of failures. */
void ranks_board_note_failure(ranks_board *board, int rank, const char *line);
void ranks_board_note_skip(ranks_board *board, int rank, const char *reason);
/* Skipped, whatever ranks find from now on. */
void ranks_board_note_refusal(ranks_board *board, int rank, const char *reason);

/* What rank noted in the reader's present test, and counts; between finish and the next enter final. */
unsigned ranks_board_failures(ranks_board *board, int reader, int rank);
const char *ranks_board_notes(ranks_board *board, int reader, int rank);
/* NULL if no rank asked for it. */
const char *ranks_board_skip_reason(ranks_board *board, int reader);

#endif
