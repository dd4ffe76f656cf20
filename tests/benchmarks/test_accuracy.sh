#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What benchmarks/accuracy/accuracy claims, with few steps of a tiny model. How large differences are is not looked at.
#
#   test_accuracy.sh CLAIM SOURCE_DIR 02_CHAR_GPT MPIRUN
#
#   table       a row for each optimizer and wire, differences that follow from the CSV, a plot, and runs that are kept
#   options     wrong ones are refused, and --help is not
set -eu

claim=$1
accuracy=$2/benchmarks/accuracy/accuracy
program=$3
mpirun=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

# run STATUS OPTION...
run() {
    local expected=$1
    shift
    expect_apart "$expected" "$accuracy" --program "$program" --mpirun "$mpirun" "$@"
}

case $claim in
table)
    plot=()
    command -v gnuplot >/dev/null && plot=(--plot "$work/plot.svg")
    run 0 --quick --seeds 1,2 --wires native,float8,topk-alone --optimizers sgd --logs "$work/logs" \
        --csv "$work/all.csv" "${plot[@]}"
    [ ! -s "$work/errors" ] || fail "says something in a pipe"
    awk -F, '
        NR > 1 { lines++; loss[$2, $3] = $4; bytes[$2] = $6; flushed[$2] += $7 + $8 }
        function compare(wire, mean,    i, sum) {
            for (i = 1; i <= 2; i++) sum += 100 * (loss[wire, i] / loss["native", i] - 1) / 2
            if (sum == 0 || sprintf("%+.3f", sum) != mean) { print wire, sum, mean; exit 1 }
        }
        END {
            if (lines != 6) { print lines " lines"; exit 1 }
            if (!(bytes["native"] > 2 * bytes["topk-alone"] && bytes["topk-alone"] > 0)) { print "bytes"; exit 1 }
            while ((getline line <table) > 0) {
                split(line, field, / *[|] */)
                if (field[3] == "float8" || field[3] == "topk-alone") { rows++; compare(field[3], field[5]) }
            }
            exit rows != 2
        }' table="$work/output" "$work/all.csv" || fail "the table is not the CSV's"
    [ "${#plot[@]}" -eq 0 ] || grep -q '<svg' "$work/plot.svg" || fail "there is no plot"
    cp "$work/all.csv" "$work/before.csv"
    sed -i '$s/^12,[^,]*/12,7/' "$work/logs/sgd.float8.seed1.csv"
    run 0 --quick --seeds 1,2 --wires native,float8,topk-alone --optimizers sgd --logs "$work/logs" \
        --csv "$work/all.csv"
    [ "$(diff "$work/before.csv" "$work/all.csv" | grep -c '^>')" -eq 1 ] || fail "kept runs are not used"
    ;;
options)
    run 0 --help
    grep -q -e '--seeds' "$work/output" || fail "--help does not help"
    for wrong in '--ranks 0' '--steps x' '--seeds a' '--wires topk' '--wires native,nobody' '--optimizers lamb' \
        '--plot x.gif' '--csv' '--no-such-option' 'word' "--program $work/none"; do
        # shellcheck disable=SC2086 # two words where there are two
        run 2 $wrong
        [ -s "$work/errors" ] || fail "says nothing about $wrong"
    done
    run 1 --quick --wires native --optimizers sgd --model "--width 7"
    grep -q 'seed 1, sgd, native' "$work/errors" || fail "does not name the run that failed"
    ;;
*)
    echo "there is no claim named $claim"
    exit 2
    ;;
esac
echo "$claim: ok"
