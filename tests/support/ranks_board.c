/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks_board.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BOARD_IS_READY 0x626f6172u
#define ATTACH_WAITS_MAX 10000 /* milliseconds that the others may take to start */

typedef struct board_entry {
    unsigned meets;
    unsigned failures;
    bool has_left;
    bool is_skipped;
    bool is_refused;
    unsigned failures_before; /* it was refused */
    size_t notes_length;
    char notes[RANKS_NOTES_MAX];
    char skip_reason[160];
    unsigned char exchange[2][RANKS_EXCHANGE_MAX]; /* alternating: a rank is at most one meeting ahead */
} board_entry;

typedef struct board_rank {
    unsigned phase; /* three per test: entered, left, finished */
    board_entry entries[2];
} board_rank;

struct ranks_board {
    _Atomic unsigned is_ready;
    int world;
    int attached;
    bool is_shared;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    board_rank ranks[RANKS_WORLD_MAX];
};

static unsigned test_of(const ranks_board *board, int rank) {
    return (board->ranks[rank].phase + 2) / 3; /* phases 1, 2, 3 belong to test 1 */
}

static board_entry *entry_of(ranks_board *board, int rank) {
    return &board->ranks[rank].entries[test_of(board, rank) % 2];
}

static void wait_for_phase(ranks_board *board, unsigned phase) {
    for (int rank = 0; rank < board->world; rank++) {
        while (board->ranks[rank].phase < phase) {
            pthread_cond_wait(&board->changed, &board->lock);
        }
    }
}

static void advance(ranks_board *board, int rank) {
    pthread_cond_broadcast(&board->changed);
    wait_for_phase(board, board->ranks[rank].phase);
    pthread_mutex_unlock(&board->lock);
}

void ranks_board_enter(ranks_board *board, int rank) {
    pthread_mutex_lock(&board->lock);
    board->ranks[rank].phase++;
    memset(entry_of(board, rank), 0, sizeof(board_entry));
    advance(board, rank);
}

void ranks_board_leave(ranks_board *board, int rank) {
    pthread_mutex_lock(&board->lock);
    entry_of(board, rank)->has_left = true;
    board->ranks[rank].phase++;
    advance(board, rank);
}

void ranks_board_finish(ranks_board *board, int rank) {
    pthread_mutex_lock(&board->lock);
    board->ranks[rank].phase++;
    advance(board, rank);
}

/* The first rank that can no longer come to the meeting, or -1. */
static int missing_at(ranks_board *board, unsigned meeting) {
    for (int rank = 0; rank < board->world; rank++) {
        const board_entry *entry = entry_of(board, rank);
        if (entry->meets < meeting && entry->has_left) {
            return rank;
        }
    }
    return -1;
}

static bool is_complete(ranks_board *board, unsigned meeting) {
    for (int rank = 0; rank < board->world; rank++) {
        if (entry_of(board, rank)->meets < meeting) {
            return false;
        }
    }
    return true;
}

int ranks_board_meet(ranks_board *board, int rank, const void *mine, size_t bytes, void *all) {
    pthread_mutex_lock(&board->lock);
    board_entry *entry = entry_of(board, rank);
    const unsigned meeting = ++entry->meets;
    if (bytes > 0) {
        memcpy(entry->exchange[meeting % 2], mine, bytes);
    }
    pthread_cond_broadcast(&board->changed);
    int missing = -1;
    while (!is_complete(board, meeting) && (missing = missing_at(board, meeting)) < 0) {
        pthread_cond_wait(&board->changed, &board->lock);
    }
    for (int peer = 0; missing < 0 && bytes > 0 && peer < board->world; peer++) {
        memcpy((unsigned char *)all + (size_t)peer * bytes, entry_of(board, peer)->exchange[meeting % 2], bytes);
    }
    pthread_mutex_unlock(&board->lock);
    return missing;
}

void ranks_board_note_failure(ranks_board *board, int rank, const char *line) {
    pthread_mutex_lock(&board->lock);
    board_entry *entry = entry_of(board, rank);
    entry->failures++;
    const size_t length = strlen(line);
    if (entry->notes_length + length + 2 <= sizeof(entry->notes)) {
        memcpy(entry->notes + entry->notes_length, line, length);
        entry->notes_length += length;
        entry->notes[entry->notes_length++] = '\n';
    }
    pthread_mutex_unlock(&board->lock);
}

void ranks_board_note_skip(ranks_board *board, int rank, const char *reason) {
    pthread_mutex_lock(&board->lock);
    board_entry *entry = entry_of(board, rank);
    entry->is_skipped = true;
    snprintf(entry->skip_reason, sizeof(entry->skip_reason), "%s", reason);
    pthread_mutex_unlock(&board->lock);
}

void ranks_board_note_refusal(ranks_board *board, int rank, const char *reason) {
    ranks_board_note_skip(board, rank, reason);
    pthread_mutex_lock(&board->lock);
    board_entry *entry = entry_of(board, rank);
    entry->failures_before = entry->is_refused ? entry->failures_before : entry->failures;
    entry->is_refused = true;
    pthread_mutex_unlock(&board->lock);
}

/* Named by the reader's test, since after finish another rank may have entered the next one already. */
static board_entry *entry_read_by(ranks_board *board, int reader, int rank) {
    return &board->ranks[rank].entries[test_of(board, reader) % 2];
}

unsigned ranks_board_failures(ranks_board *board, int reader, int rank) {
    pthread_mutex_lock(&board->lock);
    const board_entry *entry = entry_read_by(board, reader, rank);
    bool is_refused = false;
    for (int peer = 0; peer < board->world; peer++) {
        is_refused = is_refused || entry_read_by(board, reader, peer)->is_refused;
    }
    const unsigned failures = is_refused ? entry->failures_before : entry->failures;
    pthread_mutex_unlock(&board->lock);
    return failures;
}

const char *ranks_board_notes(ranks_board *board, int reader, int rank) {
    return entry_read_by(board, reader, rank)->notes;
}

const char *ranks_board_skip_reason(ranks_board *board, int reader) {
    for (int rank = 0; rank < board->world; rank++) {
        const board_entry *entry = entry_read_by(board, reader, rank);
        if (entry->is_skipped) {
            return entry->skip_reason;
        }
    }
    return NULL;
}

/* ---- Opening ------------------------------------------------------------------------------------------------------
 */

static void initialise(ranks_board *board, int world, bool is_shared) {
    pthread_mutexattr_t lock_attributes;
    pthread_condattr_t changed_attributes;
    pthread_mutexattr_init(&lock_attributes);
    pthread_condattr_init(&changed_attributes);
    if (is_shared) {
        pthread_mutexattr_setpshared(&lock_attributes, PTHREAD_PROCESS_SHARED);
        pthread_condattr_setpshared(&changed_attributes, PTHREAD_PROCESS_SHARED);
    }
    pthread_mutex_init(&board->lock, &lock_attributes);
    pthread_cond_init(&board->changed, &changed_attributes);
    pthread_mutexattr_destroy(&lock_attributes);
    pthread_condattr_destroy(&changed_attributes);
    board->world = world;
    board->is_shared = is_shared;
    atomic_store(&board->is_ready, BOARD_IS_READY);
}

static ranks_board *map(int file, int flags) {
    void *memory = mmap(NULL, sizeof(ranks_board), PROT_READ | PROT_WRITE, flags, file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

ranks_board *ranks_board_private(int world) {
    ranks_board *board = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
    if (board != NULL) {
        initialise(board, world, false);
    }
    return board;
}

static void wait_one_millisecond(void) {
    const struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
}

/* Rank 0 makes the object; the others poll for it, since there is nothing yet that they could wait on. */
static int open_object(const char *name, int rank) {
    if (rank == 0) {
        shm_unlink(name); /* left behind by a program that was killed while it started */
        const int file = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        if (file >= 0 && ftruncate(file, (off_t)sizeof(ranks_board)) != 0) {
            close(file);
            return -1;
        }
        return file;
    }
    for (int i = 0; i < ATTACH_WAITS_MAX; i++) {
        const int file = shm_open(name, O_RDWR, 0600);
        struct stat status;
        if (file >= 0 && fstat(file, &status) == 0 && status.st_size >= (off_t)sizeof(ranks_board)) {
            return file;
        }
        if (file >= 0) {
            close(file);
        }
        wait_one_millisecond();
    }
    errno = ETIMEDOUT;
    return -1;
}

ranks_board *ranks_board_shared(const char *name, int world, int rank) {
    const int file = open_object(name, rank);
    if (file < 0) {
        return NULL;
    }
    ranks_board *board = map(file, MAP_SHARED);
    close(file);
    if (board == NULL) {
        return NULL;
    }
    if (rank == 0) {
        initialise(board, world, true);
    }
    while (atomic_load(&board->is_ready) != BOARD_IS_READY) {
        wait_one_millisecond();
    }
    pthread_mutex_lock(&board->lock);
    board->attached++;
    pthread_cond_broadcast(&board->changed);
    while (board->attached < world) {
        pthread_cond_wait(&board->changed, &board->lock);
    }
    pthread_mutex_unlock(&board->lock);
    if (rank == 0) {
        shm_unlink(name); /* everybody has it mapped: a crash from here on leaves nothing behind */
    }
    return board;
}

void ranks_board_close(ranks_board *board) {
    if (board != NULL) {
        munmap(board, sizeof(*board));
    }
}
