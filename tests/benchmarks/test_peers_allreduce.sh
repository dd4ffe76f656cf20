#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What benchmarks/peers/allreduce claims, with few calls of small sizes. Times are not looked at.
#
#   test_peers_allreduce.sh CLAIM SOURCE_DIR ALLREDUCE_PERF MPIRUN
#
#   table       a row for each size, medians and ratios that follow from the figures in the CSV, JSON and a plot
#   self_test   a spoiled bit in one result is the exit status, and is said
#   options     wrong ones are refused, and --help is not
set -eu

claim=$1
peers=$2/benchmarks/peers/allreduce
program=$3
mpirun=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

# run STATUS OPTION...
run() {
    local expected=$1
    shift
    expect_apart "$expected" "$peers" --program "$program" --mpirun "$mpirun" "$@"
}

case $claim in
table)
    plot=()
    command -v gnuplot >/dev/null && plot=(--plot "$work/plot.svg")
    run 0 --quick --settings default,ring,tensors --tensors 5 --csv "$work/all.csv" --json "$work/all.json" "${plot[@]}"
    [ ! -s "$work/errors" ] || fail "says something in a pipe"
    # The ratio of MPI as it comes, once more from the figures.
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        $column["others_percent"] !~ /^[0-9]+[.][0-9]$/ { print "no percentage"; exit 1 }
        { lines++; time[$column["setting"], $column["size"], $column["way"]] = $column["time_us"] }
        function compare(size, shown) {
            if (time["default", size, "mpi"] <= 0) exit 1
            if (shown + 0 != sprintf(shown < 10 ? "%.2f" : "%.0f",
                time["default", size, "mpi"] / time["default", size, "in-place"]) + 0) { print size, shown; exit 1 }
        }
        END {
            # 4 ways and 4, and with many tensors 3; of 2 sizes.
            if (lines != 22) { print lines " lines"; exit 1 }
            while ((getline line <table) > 0) {
                fields = split(line, field, / *[|] */)
                if (field[2] == "1 KiB") { rows++; compare(1024, field[12]) }
                if (field[2] == "64 KiB") { rows++; compare(65536, field[12]) }
                if (line ~ /^[|]/ && fields != 17) { print fields " fields: " line; exit 1 }
                if (line == "* wrong elements: 0") is_right = 1
            }
            exit !(rows == 2 && is_right)
        }' table="$work/output" "$work/all.csv" || fail "the table is not the CSV's"
    [ "${#plot[@]}" -eq 0 ] || grep -q '<svg' "$work/plot.svg" || fail "there is no plot"
    if command -v python3 >/dev/null; then
        python3 -c 'import json, sys; runs = json.load(open(sys.argv[1])); assert len(runs) == 6
assert [r["setting"] for r in runs[:3]] == ["default", "ring", "tensors"] and runs[0]["report"]["ok"], runs' \
            "$work/all.json" || fail "the JSON"
    fi
    ;;
self_test)
    run 1 --quick --settings default --self-test
    grep -q 'exit status 1: .* 1 FAILED' "$work/errors" || fail "says nothing about the wrong value"
    grep -q '^\* wrong elements: 2$' "$work/output" || fail "does not count it, once for each of two sizes"
    ;;
options)
    run 0 --help
    grep -q -e '--settings' "$work/output" || fail "--help does not help"
    for wrong in '--ranks 0' '--rounds x' '--sizes 1X' '--settings default,nobody' '--malloc none' '--plot x.gif' \
        '--csv' '--no-such-option' 'word' "--program $work/none"; do
        # shellcheck disable=SC2086 # two words where there are two
        run 2 $wrong
        [ -s "$work/errors" ] || fail "says nothing about $wrong"
    done
    ;;
*)
    echo "there is no claim named $claim"
    exit 2
    ;;
esac
echo "$claim: ok"
