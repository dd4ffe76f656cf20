#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The host's tests with their gradients on a real GPU, and the kernels against the host's passes, also under
# compute-sanitizer where that is found: configures, builds, runs, and prints a table.
#
#     run.sh [--ranks "1 2 4"] [--only PATTERN] [--build FOLDER] [--nccl FOLDER|python] [--simulated]
#
#   --ranks      how many; all share one GPU, as a process each                (1 2 4)
#   --only       of the programs, as grep -E takes it                          (kernels, conformance and ranks)
#   --build      where to build, or what is built already for --simulated      (build/gpu)
#   --nccl       where include/nccl.h and lib/libnccl.so.2 are; python: of the wheel that python3 finds
#   --simulated  nothing is built; the programs of --build that are linked with the simulated GPU run instead
#
# Needs nvcc, CMake, NCCL and cmocka; no MPI. Ends with 77 where there is no GPU, with 1 if anything failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
ranks="1 2 4"
only='^(unit\.device\.cuda_(encode|combine|decode|blocks|digest|settle|topk)$|conformance\.|ranks\.)'
build=$tree/build/gpu
nccl=
prefix=gpu
while [ $# -gt 0 ]; do
    case $1 in
    --simulated)
        prefix=device
        shift
        continue
        ;;
    --ranks) ranks=${2-} ;;
    --only) only=${2-} ;;
    --build) build=${2-} ;;
    --nccl) nccl=${2-} ;;
    *)
        sed -n '3,14s/^# \{0,1\}//p' "$0"
        [ "$1" = --help ] && exit 0
        exit 2
        ;;
    esac
    [ $# -ge 2 ] || exit 2
    shift 2
done

if [ "$nccl" = python ]; then
    nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])') || {
        echo "python3 finds no nvidia.nccl: install a wheel of NCCL, or give its folder to --nccl" >&2
        exit 2
    }
fi
if [ -n "$nccl" ]; then
    LD_LIBRARY_PATH=$nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi

if [ "$prefix" = gpu ]; then
    if ! ls /dev/nvidia0 >/dev/null 2>&1; then
        echo "skipped: this machine has no GPU, /dev/nvidia0; --simulated runs the same programs without one"
        exit 77
    fi
    cmake -S "$tree" -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBUILD_TESTING=ON -DGRADSYNC_MPI=OFF \
        -DGRADSYNC_CUDA=ON -DGRADSYNC_TEST_GPU=ON ${nccl:+-DGRADSYNC_NCCL_INCLUDE_DIR="$nccl/include"} || exit 2
    cmake --build "$build" --parallel || exit 2
fi

# Ranks on one GPU are hosts of their own to NCCL, and speak over the loopback interface.
export GSYNC_TEST_SHARED_DEVICE=1 NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 \
    NCCL_SHM_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2 \
    NCCL_NSOCKS_PERTHREAD=1 NCCL_SOCKET_NTHREADS=1 NCCL_DEBUG=WARN CUDA_MODULE_LOADING=EAGER

# Kernels' tests on the simulator are the unit tests themselves.
programs=$build/tests/programs
kernels=
[ "$prefix" != gpu ] || kernels=gpu.
names=$(cd "$programs" 2>/dev/null && ls | sed -n "s/^$prefix\.//p; /^unit\./p" | sort -u | grep -E "$only")
if [ -z "$names" ]; then
    echo "$programs has no program of that name" >&2
    exit 2
fi
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failures=0

# try NAME RANKS COMMAND...: a line of the table.
try() {
    label=$1 count=$2
    shift 2
    start=$(date +%s)
    "$@" >"$output" 2>&1
    case $? in
    0) result=passed ;;
    77) result=skipped ;;
    *)
        result=FAILED
        failures=$((failures + 1))
        ;;
    esac
    printf '%-55s %5s %-8s %s\n' "$label" "$count" "$result" $(($(date +%s) - start))
    [ "$result" != FAILED ] || grep -vE '^\[ +(RUN|OK)|^\[=' "$output" | head -30
}

printf '%-55s %5s %-8s %s\n' suite ranks result seconds
for name in $names; do
    case $name in
    unit.*)
        try "$name" 1 timeout 600 "$programs/$kernels$name"
        if [ "$prefix" = gpu ] && command -v compute-sanitizer >/dev/null; then
            for tool in memcheck racecheck; do
                try "$name, $tool" 1 timeout 600 compute-sanitizer --tool $tool --error-exitcode 1 \
                    "$programs/$kernels$name"
            done
        fi
        continue
        ;;
    esac
    for world in $ranks; do
        try "$name" "$world" sh "$here/../mirror/torchrun.sh" "$world" 600 "$programs/$prefix.$name"
    done
done
echo "$failures failed"
[ "$failures" -eq 0 ]
