#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What allreduce_perf_cuda claims, on the simulator, which ends it with another status if its calls are a race. Times are
# not looked at: only that there are some, and that what follows from others does.
#
#   test_allreduce_perf_cuda.sh CLAIM PROGRAM [MPIRUN...]   MPIRUN... already holds the number of ranks, 2; without it,
#                                                           ranks are started as torchrun does, or are threads
#
#   columns     a row for each size, every element right, and the GPU in the header
#   types       all types and operations, sizes that are no multiple of anything, one rank and three
#   self_test   one spoiled bit is found in each way
#   peer        NCCL in turn with the library, registered memory, and the ratios
#   clock       the GPU's
#   json        parses and says the same; skipped (77) without python3
#   options     wrong ones are refused, as are no GPU and one for two
set -eu

claim=$1
program=$2
shift 2
launcher=$*

. "$(dirname "$0")/../examples/ranks.sh"

# rows COUNT [SCATTERED [PEERS]]: so many rows, nothing wrong in any, and columns that follow from each other.
rows() {
    awk -v rows="$1" -v scattered="${2:-0}" -v peers="${3:-0}" '
        function bad(text) { print text ": " $0; failed = 1 }
        # The digits that are printed.
        function near(a, b) { return a - b < 0.0006 + a / 50 && b - a < 0.0006 + a / 50 }
        /^# Out of bounds values : 0 OK$/ { is_ok = 1 }
        /^#/ { next }
        {
            seen++
            width = $3 == "double" ? 8 : ($3 == "float" ? 4 : 2)
            if (NF != 13 + 3 * scattered + 4 * peers) bad("fields")
            if ($1 != $2 * width) bad("size is not count x width")
            if ($6 <= 0 || $10 <= 0 || $9 != "0" || $13 != "0") bad("the library")
            if (scattered && ($14 <= 0 || $15 != "0" || !near($16, $14 / $10))) bad("scattered")
            at = 14 + 3 * scattered
            if (peers && ($at <= 0 || $(at + 1) != "0" || !near($(at + 2), $at / $6) || !near($(at + 3), $at / $10)))
                bad("the peer")
        }
        END {
            if (seen != rows) { print seen " rows, not " rows; failed = 1 }
            if (!is_ok) { print "no footer"; failed = 1 }
            exit failed
        }' "$work/output" || fail "the table"
}

quick="-n 3 -w 1"

# shellcheck disable=SC2086 # $quick is a list of words, and so are wrong options
case $claim in
columns)
    two 0 "$program" -b 1K -e 64K -f 4 $quick
    rows 4
    says '^# Collective test starting: allreduce_perf_cuda$'
    says '^# ranks 2: transport (nccl|mpi) .* on 1 host,'
    says '^# gpu: simulated device 0, [0-9]+ multiprocessors, CUDA [0-9.]+, driver for [0-9.]+$'
    for seed in $seeds; do
        SIMCUDA_SEED=$seed two 0 "$program" -b 4K -d all -o all --tensors 3 $quick
        rows 8 1
    done
    ;;
types)
    for ranks in 1 3; do
        alone 0 "$program" --ranks $ranks -b 1000 -e 40000 -i 30001 -d all -o all --tensors 5 $quick --peer nccl
        rows 16 1 1
    done
    # More than is copied to the host at once.
    alone 0 "$program" --ranks 2 -b 5000004 -n 1 -w 1
    rows 1
    ;;
self_test)
    for type in float double half bfloat16; do
        alone 1 "$program" --ranks 2 -b 1K -e 4K -f 2 $quick -d $type -o all --self-test
        says '^# Out of bounds values : 1 FAILED$'
    done
    for way in in-place scattered; do
        alone 1 "$program" --ranks 2 -b 4K $quick --tensors 3 --ways $way --self-test --csv -
        grep -Eq ",$way,.*,1\$" "$work/output" || fail "the wrong value of $way is not in its row"
    done
    ;;
peer)
    two 0 "$program" -b 1M $quick -o all --tensors 3 --peer nccl
    rows 2 1 1
    says '^# peer nccl: ncclAllReduce in place, ncclSum, NCCL [0-9.]+, as many .*, memory of cudaMalloc$'
    says '^# Least, from 1 MiB on : nccl, float: x-out [0-9.]+ \(1048576 B, (sum|avg)\), x-in [0-9.]+ \('
    two 0 "$program" -b 4K $quick -d all --tensors 3 --peer nccl --register --ctas 4
    rows 4 1 1
    says '^# peer nccl: .*, at most 4 multiprocessors, memory of ncclMemAlloc, registered$'
    says '^# Least, from 1 MiB on : nccl, half: x-out N/A, x-in N/A$'
    ;;
clock)
    for seed in 1 2 3; do
        SIMCUDA_SEED=$seed alone 0 "$program" --ranks 2 -b 4K -e 16K -f 4 -d all -o all $quick --tensors 3 --clock gpu --peer nccl
        rows 16 1 1
        says '^# time: .* gsync_finish_on, on the GPU.s clock'
    done
    ;;
json)
    command -v python3 >/dev/null || {
        echo "skipped: there is no python3"
        exit 77
    }
    alone 0 "$program" --ranks 2 -b 512K -e 2M -f 2 $quick --tensors 3 --peer nccl --ctas 4 --json "$work/file.json"
    rows 3 1 1
    python3 - "$work/file.json" "$work/output" <<'PYTHON' || fail "the JSON"
import json
import sys

report = json.load(open(sys.argv[1]))
table = [line.split() for line in open(sys.argv[2]) if not line.startswith("#")]
assert report["program"] == "allreduce_perf_cuda" and report["gpu"].startswith("simulated device 0"), report
assert report["options"]["ctas"] == 4 and report["options"]["clock"] == "host", report["options"]
assert report["ok"] is True and list(report["peers"]) == ["nccl"] and len(report["rows"]) == len(table) == 3
for row, line in zip(report["rows"], table):
    assert [str(row["size"]), str(row["count"]), row["type"], row["redop"]] == line[:4], (row, line)
    assert row["out_of_place"]["bytes_copied"] == row["in_place"]["bytes_copied"] == 0, row
    assert row["scattered"]["bytes_copied"] == 2 * row["size"], row
for way in "out_of_place", "in_place":
    ratios = [row["peers"]["nccl"]["time_us"] / row[way]["time_us"] for row in report["rows"] if row["size"] >= 1 << 20]
    assert len(ratios) == 2 and abs(report["least_ratios"]["nccl"]["float"][way] - min(ratios)) < 1e-3, report
PYTHON
    ;;
options)
    alone 0 "$program" --help
    says '--share-gpu'
    for wrong in '--peer limit' '--peer nccl,nccl' '--peer-malloc tuned' '--ctas 0' '--ctas 65' '--clock nobody' \
        '--ranks 0' '-d int8' '--no-such-option'; do
        alone 2 "$program" $wrong
        says '^allreduce_perf_cuda: '
    done
    alone 2 "$program" --peer mpi
    says 'nccl is the only one here'
    two 2 "$program" --ranks 2
    says '^allreduce_perf_cuda: --ranks is .* torchrun$'
    SIMCUDA_DEVICES=0 alone 1 "$program" --ranks 2 -b 4K
    says 'no device'
    SIMCUDA_DEVICES=0 two 1 "$program" -b 4K
    says 'no device'
    SIMCUDA_DEVICES=1 two 1 "$program" -b 4K
    says 'both on (GPU )?0000:'
    # shellcheck disable=SC2016 # RANK is the rank's
    SIMCUDA_DEVICES=1 two 0 sh -c 'NCCL_HOSTID=$RANK exec "$0" "$@"' "$program" -b 4K $quick --share-gpu --peer nccl
    rows 1 0 1
    ;;
*)
    echo "no such claim: $claim" >&2
    exit 2
    ;;
esac
echo "allreduce_perf_cuda $claim: ok"
