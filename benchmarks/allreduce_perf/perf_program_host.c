/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_program.h"

static const char HELP[] =
    "Measures the all-reduce of one gradient, prints nccl-tests' columns, and checks every element of every result.\n"
    "    allreduce_perf --ranks 2 [OPTION...]           2 threads of this process are the ranks\n"
    "    mpirun -n 2 allreduce_perf [OPTION...]         2 processes are\n"
    "\n"
    "  -b, --minbytes SIZE        smallest size (32M; with -e alone: that)\n"
    "  -e, --maxbytes SIZE        largest size (32M; with -b alone: that). SIZE may end in K, M or G: 1024, 1024^2, "
    "^3\n"
    "  -f, --stepfactor N         each size is the last one times N\n"
    "  -i, --stepbytes SIZE       without -f: each size is the last one plus SIZE (1M)\n"
    "  -n, --iters N              timed calls per size (20)\n"
    "  -w, --warmup_iters N       calls before them, not timed; at least 1 (5)\n"
    "  -c, --check 0|1            compare every element after every call, warm-up included (1)\n"
    "  -d, --datatype TYPE        float, double, half, bfloat16 or all (float)\n"
    "  -o, --op OP                sum, avg or all (sum)\n"
    "      --ranks N              the ranks are N threads; not under mpirun\n"
    "      --progress WHO         who moves the buckets: auto, helper (a thread) or caller (auto)\n"
    "      --tensors N            the gradient in N tensors of uneven sizes, in one bucket: in-place in the bucket, "
    "and\n"
    "                             scattered, each in private memory of its own (1: one tensor, and no scattered)\n"
    "      --ways WAY[,WAY...]    out-of-place, in-place, scattered: measure no others of the library's (all)\n"
    "      --peer NAME[,NAME...]  others of the same bytes, round by round in turn with the library:\n"
    "                               limit   the memory traffic of an all-reduce in place, and nothing else\n"
    "                               mpi     MPI_Allreduce. Under mpirun, as gloo\n"
    "                               gloo    all of gloo-ring, gloo-ring-chunked, gloo-halving-doubling, gloo-bcube\n"
    "      --peer-malloc HOW      tuned: the C library keeps memory that peers free; default: as it is (tuned)\n"
    "      --json FILE            the results, with more about each. With - in place of FILE: to stdout, and no table\n"
    "      --csv FILE             the same figures, a line for each size and way\n"
    "      --self-test            spoil one bit of one result: must report 1 wrong and exit with 1\n"
    "  -h, --help                 this text\n"
    "\n"
    "  out-of-place   the gradient is in private memory. Between processes what others add up of it is copied to "
    "where\n"
    "                 they can read it, and back; threads read each other's, and --json says how much was copied\n"
    "  in-place       the gradient lives in the library's bucket (gsync_reducer_grad); nothing is copied\n"
    "  time           microseconds from gsync_begin to the end of gsync_finish on the slowest rank; the median call\n"
    "  algbw          size / time, in 10^9 bytes per second\n"
    "  busbw          algbw x 2(n-1)/n for n ranks\n"
    "  #wrong         elements with a wrong value, over all calls and ranks\n"
    "  scattered      the gradient is many tensors in private memory; x-in: its time over the in-place time\n"
    "  a peer         its time; x-out and x-in are its time over the library's out-of-place and in-place time, so "
    "that\n"
    "                 the limit's x-in is the in-place way's share of what memory allows\n"
    "  stalls         (shown if there are any) timed calls slower than the median by more than 3 ms\n"
    "\n"
    "Exit status: 0 when everything went well, 1 when a value was wrong or something failed, 2 for a wrong option.\n";

static const perf_known_peer PEERS[] = {
    {"limit", &perf_peer_limit},
#if GS_HAVE_MPI
    {"mpi", &perf_peer_mpi},
#endif
#if GS_HAVE_GLOO
    {"gloo", &perf_peer_gloo_ring},  {"gloo", &perf_peer_gloo_ring_chunked}, {"gloo", &perf_peer_gloo_halving_doubling},
    {"gloo", &perf_peer_gloo_bcube},
#endif
};

static const char *const SETTINGS[] = {NULL};

/* The head start is longer than it takes to wake a rank that fell asleep while it waited for the others. */
const perf_program perf_program_own = {
    .name = "allreduce_perf",
    .help = HELP,
    .peers = PEERS,
    .peer_count = sizeof PEERS / sizeof *PEERS,
    .peers_wanted = "--peer: this build knows no such peers, or one is named twice",
    .terms = "# out-of-place: the gradient is in private memory; between processes what others add up of it is copied\n"
             "#               to where they can read it, a piece at a time, and back\n"
             "# in-place:     the gradient lives in the library's bucket, and nothing is copied\n",
    .settings = SETTINGS,
    .head_start_ns = 100000,
};
