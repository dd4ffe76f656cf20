/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the link between the first and the last rank of MPI carries. It is the floor of everything that travels there.
 * --help says what is measured.
 */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <mpi.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, ROUNDS_MAX = 1000, PINGS = 200, TAG = 1, BYTES_MAX = 1 << 28, PIECE_BYTES = 1 << 15 };

static const char usage[] =
    "usage: mpirun -n N link_rate [--bytes N] [--rounds N] [--help]\n"
    "\n"
    "Measures the link between the first and the last rank of MPI: a message one way, as much both ways at once in\n"
    "pieces, and the round trip of a message of one byte. Rates are of the messages' bytes, per direction.\n"
    "\n"
    "  --bytes   of a message (4194304), at most 268435456\n"
    "  --rounds  messages, of which the median is printed (5), after one of warm-up\n"
    "\n"
    "Exit status: 0 when all was well, 1 when a message was wrong, 2 for a wrong option.\n";

typedef struct link_options {
    int bytes;
    int rounds;
} link_options;

typedef struct link_rank {
    int peer;
    bool is_first;
    char *outgoing;
    char *incoming;
} link_rank;

/* Tokens before and after, so that only the first rank's clock is needed and neither starts alone. */
static double time_one_way(const link_rank *rank, int bytes) {
    char token = 0;
    const double start = MPI_Wtime();
    if (rank->is_first) {
        MPI_Send(rank->outgoing, bytes, MPI_BYTE, rank->peer, TAG, MPI_COMM_WORLD);
        MPI_Recv(&token, 1, MPI_BYTE, rank->peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(rank->incoming, bytes, MPI_BYTE, rank->peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&token, 1, MPI_BYTE, rank->peer, TAG, MPI_COMM_WORLD);
    }
    return MPI_Wtime() - start;
}

/* In pieces that Open MPI sends eagerly: it can send large messages in both directions one after the other. */
static double time_both_ways(const link_rank *rank, int bytes) {
    static MPI_Request requests[2 * (BYTES_MAX / PIECE_BYTES)];
    int count = 0;
    const double start = MPI_Wtime();
    for (int at = 0; at < bytes; at += PIECE_BYTES) {
        const int piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        MPI_Irecv(rank->incoming + at, piece, MPI_BYTE, rank->peer, TAG, MPI_COMM_WORLD, &requests[count++]);
    }
    for (int at = 0; at < bytes; at += PIECE_BYTES) {
        const int piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        MPI_Isend(rank->outgoing + at, piece, MPI_BYTE, rank->peer, TAG, MPI_COMM_WORLD, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    return MPI_Wtime() - start;
}

typedef double (*timed_way)(const link_rank *rank, int bytes);

static double median_of(timed_way way, const link_rank *rank, int bytes, int rounds) {
    double seconds[ROUNDS_MAX];
    (void)way(rank, bytes);
    for (int i = 0; i < rounds; i++) {
        seconds[i] = way(rank, bytes);
    }
    qsort(seconds, (size_t)rounds, sizeof *seconds, measure_by_size);
    return seconds[rounds / 2];
}

static bool measure(const link_rank *rank, const link_options *options) {
    memset(rank->outgoing, rank->is_first ? 'a' : 'b', (size_t)options->bytes);
    memset(rank->incoming, 0, (size_t)options->bytes);
    const double ping = median_of(time_one_way, rank, 1, PINGS);
    const double one_way = median_of(time_one_way, rank, options->bytes, options->rounds);
    const double both_ways = median_of(time_both_ways, rank, options->bytes, options->rounds);
    const double megabits = (double)options->bytes * 8 / 1e6;
    if (rank->is_first) {
        printf("# link_rate: one way %.1f Mbit/s, both ways %.1f Mbit/s each, round trip %.1f us\n", megabits / one_way,
               megabits / both_ways, ping * 1e6);
    }
    for (int i = 0; i < options->bytes; i++) {
        if (rank->incoming[i] != (rank->is_first ? 'b' : 'a')) {
            fprintf(stderr, "link_rate: byte %d is wrong\n", i);
            return false;
        }
    }
    return true;
}

static bool read_number(const char *text, long most, int *number) {
    char *end;
    const long value = strtol(text, &end, 10);
    *number = (int)value;
    return end != text && *end == '\0' && value >= 1 && value <= most;
}

/* Returns EXIT_SUCCESS when there is something to measure. */
static int read_options(int argc, char **argv, link_options *options) {
    for (int i = 1; i < argc; i += 2) {
        const bool has_value = i + 1 < argc;
        const bool is_good =
            has_value && ((strcmp(argv[i], "--bytes") == 0 && read_number(argv[i + 1], BYTES_MAX, &options->bytes)) ||
                          (strcmp(argv[i], "--rounds") == 0 && read_number(argv[i + 1], ROUNDS_MAX, &options->rounds)));
        if (!is_good) {
            fprintf(stderr, "link_rate: cannot use \"%s\"\n%s", argv[i], usage);
            return EXIT_USAGE;
        }
    }
    return EXIT_SUCCESS;
}

/* The ranks in between only wait. */
static int run(const link_options *options) {
    int world_rank;
    int world_size;
    bool is_ok = true;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    if (world_size < 2) {
        fprintf(stderr, "link_rate: needs mpirun and two ranks\n");
        return EXIT_USAGE;
    }
    if (world_rank == 0 || world_rank == world_size - 1) {
        link_rank rank = {.peer = world_size - 1 - world_rank, .is_first = world_rank == 0};
        rank.outgoing = malloc((size_t)options->bytes);
        rank.incoming = malloc((size_t)options->bytes);
        is_ok = rank.outgoing != NULL && rank.incoming != NULL && measure(&rank, options);
        free(rank.outgoing);
        free(rank.incoming);
    }
    return is_ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    link_options options = {.bytes = 4 << 20, .rounds = 5};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    int status = read_options(argc, argv, &options);
    if (status == EXIT_SUCCESS) {
        MPI_Init(&argc, &argv);
        status = run(&options);
        MPI_Finalize();
    }
    return status;
}
