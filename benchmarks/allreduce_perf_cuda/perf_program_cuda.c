/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_program.h"

static const char HELP[] =
    "Measures the all-reduce of one gradient in the memory of GPUs, prints nccl-tests' columns, and checks every "
    "element "
    "of\nevery result. A GPU for each rank.\n"
    "    mpirun -n 2 allreduce_perf_cuda [OPTION...]                                     2 processes are the ranks\n"
    "    torchrun --no-python --nproc-per-node 2 allreduce_perf_cuda [OPTION...]         the same without MPI\n"
    "    allreduce_perf_cuda --ranks 2 [OPTION...]                                       2 threads of this process "
    "are\n"
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
    "      --ranks N              the ranks are N threads; not under a launcher\n"
    "      --progress WHO         of the communicator: auto, helper (a thread) or caller (auto)\n"
    "      --tensors N            the gradient in N tensors of uneven sizes, in one bucket: in-place in the bucket, "
    "and\n"
    "                             scattered, each in memory of its own (1: one tensor, and no scattered)\n"
    "      --ways WAY[,WAY...]    out-of-place, in-place, scattered: measure no others of the library's (all)\n"
    "      --peer nccl            ncclAllReduce of the same bytes, called directly, in turn with the library\n"
    "      --clock WHOSE          host: from gsync_begin to the end of gsync_finish, where the host waits; gpu: "
    "between\n"
    "                             events on a stream around gsync_begin and gsync_finish_on, where it does not (host)\n"
    "      --ctas N               multiprocessors that a collective may use, of the library and of the peer (NCCL's "
    "choice)\n"
    "      --register             the library's buckets and the peer's memory are registered with NCCL; out-of-place "
    "and\n"
    "                             scattered cannot be\n"
    "      --share-gpu            several ranks may use one GPU; NCCL has to be told too\n"
    "      --json FILE            the results, with more about each. With - in place of FILE: to stdout, and no table\n"
    "      --csv FILE             the same figures, a line for each size and way\n"
    "      --self-test            spoil one bit of one result: must report 1 wrong and exit with 1\n"
    "  -h, --help                 this text\n"
    "\n"
    "  out-of-place   the gradient is memory that this program allocated on the GPU\n"
    "  in-place       the gradient lives in the library's bucket (gsync_reducer_grad)\n"
    "  time           microseconds on the slowest rank; the median call\n"
    "  algbw          size / time, in 10^9 bytes per second\n"
    "  busbw          algbw x 2(n-1)/n for n ranks\n"
    "  #wrong         elements with a wrong value, over all calls and ranks\n"
    "  scattered      the gradient is many tensors, each allocated by this program; x-in: its time over the in-place "
    "time\n"
    "  nccl           its time; x-out and x-in are its time over the library's out-of-place and in-place time: 1 where "
    "the\n"
    "                 library costs nothing, 0.97 where it takes 3 % longer. The least from 1 MiB on is below the "
    "table\n"
    "  stalls         (shown if there are any) timed calls slower than the median by more than 3 ms\n"
    "\n"
    "Exit status: 0 when everything went well, 1 when a value was wrong or something failed, 2 for a wrong option.\n";

static const perf_known_peer PEERS[] = {{"nccl", &perf_peer_nccl}};

static const char *const SETTINGS[] = {
    "NCCL_", "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS",
    NULL};

/* The head start has room for an agreement over NCCL, with copies to the GPUs and back. */
const perf_program perf_program_own = {
    .name = "allreduce_perf_cuda",
    .help = HELP,
    .is_on_gpu = true,
    .peers = PEERS,
    .peer_count = sizeof PEERS / sizeof *PEERS,
    .peers_wanted = "--peer: nccl is the only one here; limit, mpi and gloo work on the host's memory, beside "
                    "allreduce_perf",
    .terms =
        "# out-of-place: the gradient is memory that this program allocated on the GPU\n"
        "# in-place:     the gradient lives in the library's bucket on the GPU\n"
        "#               Either way ncclAllReduce sums float and double where they are, and a pass over them\n"
        "#               follows where avg divides by no power of two; half and bfloat16 are exchanged, and summed\n"
        "#               in float32\n",
    .settings = SETTINGS,
    .head_start_ns = 500000,
};
