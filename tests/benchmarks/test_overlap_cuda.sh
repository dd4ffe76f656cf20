#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What overlap_cuda prints, on the simulator. Times are not looked at: only that there are some, and that what follows
# from others does.
#
#   test_overlap_cuda.sh CLAIM PROGRAM [MPIRUN...]     MPIRUN... already holds the number of ranks, 2; without it, ranks
#                                                      are started as torchrun does
set -eu

claim=$1
program=$2
shift 2
launcher=$*

. "$(dirname "$0")/../examples/ranks.sh"

small="--bytes 64K --buckets 3 --fill 0 --passes 1 --rounds 3"

# Hidden and exposed follow from the medians, but for the last digit of each.
overlaps_follow() {
    awk '
        function size(a) { return a < 0 ? -a : a }
        function near(a, b, most) { return size(a - b) <= most }
        /^(compute|communication|one after the other|step) / { gpu[$1] = $(NF - 3); wall[$1] = $(NF - 1) }
        $1 == "gpu" || $1 == "wall" {
            clocks++
            for (way in gpu)
                of[way] = $1 == "gpu" ? gpu[way] : wall[way]
            good += $2 == of["compute"] && $3 == of["communication"] && $4 == of["step"] &&
                near($5 + $6, $3, 0.0021) && near($6, $4 - $2, 0.0021) && $3 > 0 && near($7, $5 / $3, 0.001 + 0.001 * (1 + size($7)) / $3)
        }
        END { exit !(clocks == 2 && good == 2) }
    ' "$work/output" || fail "the columns do not fit together"
}

# shellcheck disable=SC2086 # $small is a list of words
case $claim in
columns)
    two 0 "$program" $small --json "$work/file.json"
    says '^# overlap_cuda, gradsync [0-9.]+, 2 ranks$'
    says '^# rank 0 has simulated device 0, '
    says '^# 67584 bytes in 3 buckets of 22528, 3 rounds after 2 of warm-up, all results right$'
    says '^# backward: 12 gradients, for each 1 threads with 1 passes$'
    for way in compute communication 'one after the other' step; do
        says "^$way( +[0-9]+\.[0-9]{3}){4}\$"
        grep -Eq "\"way\": \"$way\", \"gpu_ms\": [0-9.]*[1-9]" "$work/file.json" || fail "no $way in the JSON"
    done
    overlaps_follow
    if command -v python3 >/dev/null; then
        alone 0 python3 -m json.tool "$work/file.json"
    fi
    two 0 "$program" --bytes 4096 --buckets 1 --fill 0 --compute-ms 2 --rounds 1 --ctas 4 --json -
    says '"benchmark": "overlap_cuda"'
    ! grep -q '^#' "$work/output" || fail "there is a table beside the JSON"
    for seed in $seeds; do
        SIMCUDA_SEED=$seed two 0 "$program" $small
    done
    ;;
options)
    alone 0 "$program" --help
    says '--compute-ms'
    for wrong in '--bytes' '--bytes 1X' '--rounds 0' '--fill 101' '--no-such-option 1'; do
        alone 2 "$program" $wrong
    done
    alone 1 "$program" $small --json "$work/no/such/file"
    SIMCUDA_DEVICES=0 alone 1 "$program" $small
    says 'there is no GPU here: no device'
    SIMCUDA_DEVICES=1 two 1 "$program" $small
    says 'both on (GPU )?0000:'
    ;;
*)
    echo "no such claim: $claim" >&2
    exit 2
    ;;
esac
echo "overlap_cuda $claim: ok"
