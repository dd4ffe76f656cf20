#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What examples/03_cuda_mlp promises, on the simulator.
#
#   test_cuda_mlp.sh CLAIM PROGRAM [MPIRUN...]     MPIRUN... already holds the number of ranks, 2; without it, ranks are
#                                                  started as torchrun does
set -eu

claim=$1
program=$2
shift 2
launcher=$*

. "$(dirname "$0")/ranks.sh"

# Small buckets, so that there are several, and a seed's schedules are mixed up.
small="--width 32 --layers 2 --batch 32 --bucket-bytes 2000 --evaluate 2048"

accuracy_is_at_least() {
    awk -v least="$1" '/did not learn from/ { found = 1; exit !($(NF - 1) >= least) } END { if (!found) exit 1 }' \
        "$work/output" || fail "the accuracy is below $1 %"
}

# curves_agree LOG LOG TOLERANCE: step by step, relative to the loss.
curves_agree() {
    paste -d, "$1" "$2" | awk -F, -v tolerance="$3" '
        NR == 1 { next }
        { difference = ($2 - $7) / $2; if (difference < 0) difference = -difference }
        difference > worst { worst = difference }
        END { printf "%d steps, worst relative difference %.2g\n", NR - 1, worst; exit !(NR > 30 && worst <= tolerance) }
    ' || fail "$1 and $2 disagree"
}

# shellcheck disable=SC2086 # $small is a list of words
case $claim in
learns)
    two 0 "$program" $small --steps 200 --lr 0.1
    says '^gpu: .* simulated device 0$'
    says '^ranks: .* 2 ranks'
    says 'in [3-9] buckets, native'
    says '; 0 skipped;'
    accuracy_is_at_least 90
    for seed in $seeds; do
        SIMCUDA_SEED=$seed two 0 "$program" $small --steps 6 --accumulate 2
    done
    ;;
same_curve)
    flags="--width 32 --layers 2 --bucket-bytes 2000 --evaluate 32 --steps 40"
    alone 0 "$program" $flags --batch 32 --log "$work/1.csv"
    two 0 "$program" $flags --batch 16 --log "$work/2.csv"
    two 0 "$program" $flags --batch 8 --accumulate 2 --log "$work/22.csv"
    two 0 "$program" $flags --batch 16 --loss-scale 1024 --log "$work/scaled.csv"
    for log in 2 22 scaled; do
        curves_agree "$work/1.csv" "$work/$log.csv" 1e-6
    done
    two 0 "$program" $flags --batch 16 --seed 2 --log "$work/other.csv"
    if (curves_agree "$work/1.csv" "$work/other.csv" 1e-6) >/dev/null; then
        fail "other samples give the same curve"
    fi
    ;;
wires)
    flags="$small --steps 150 --lr 0.1"
    two 0 "$program" $flags --log "$work/native.csv"
    for wire in float16 bfloat16; do
        two 0 "$program" $flags --wire $wire --loss-scale 1024 --log "$work/$wire.csv"
        says "buckets, $wire\$"
        accuracy_is_at_least 85
        if (curves_agree "$work/native.csv" "$work/$wire.csv" 1e-5) >/dev/null; then
            fail "nothing was rounded to $wire"
        fi
    done
    two 0 "$program" $small --steps 20 --wire float16 --report-every 5
    ;;
overflow)
    # Too fast: the loss explodes, and with it what is multiplied by 2^125.
    two 0 "$program" $small --steps 40 --lr 5 --loss-scale 42535295865117307932921825928971026432 --log "$work/log.csv"
    says '; [1-9][0-9]* skipped;'
    awk -F, 'NR == 2 { first = $4 } NR > 2 && $5 == 1 { skipped++ } END { exit !(skipped > 0 && $4 < first) }' \
        "$work/log.csv" || fail "the loss scale does not shrink"
    ;;
missing_wait)
    launcher=
    flags="--width 32 --layers 2 --batch 8 --steps 4 --evaluate 16 --bucket-bytes 2000"
    SIMCUDA_SITES=$work/sites two 0 "$program" $flags
    site=$(awk '$1 == "cudaStreamWaitEvent" && $2 ~ /gradsync/ { print $2 }' "$work/sites")
    [ -n "$site" ] || fail "the library waits nowhere"
    SIMCUDA_DROP_SITE=$site start_two "$program" $flags
    case " $statuses " in *" 66 "*) ;; *) fail "exit statuses $statuses: nobody misses $site" ;; esac
    says 'simcuda: race on .*"(cublasSgemm|sum rows)"|WARNING: ThreadSanitizer: data race'
    ;;
refusals)
    alone 0 "$program" --help
    says '--accumulate K'
    alone 2 "$program" --wire int8
    alone 2 "$program" --steps 0
    alone 2 "$program" --no-such-option
    alone 2 "$program" one_too_many
    alone 1 "$program" --loss-scale 3
    says 'power of two'
    alone 1 "$program" --log "$work/no/such/folder"
    says 'cannot create the log'
    SIMCUDA_DEVICES=0 alone 1 "$program"
    says 'there is no GPU here \(no device\)'
    SIMCUDA_DEVICES=1 two 1 "$program"
    says 'both on (GPU )?0000:'
    ;;
*)
    echo "no such claim: $claim" >&2
    exit 2
    ;;
esac
echo "cuda_mlp $claim: ok"
