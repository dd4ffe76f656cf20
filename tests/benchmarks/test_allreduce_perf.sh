#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What allreduce_perf claims, on 2 ranks. Times are not looked at: only that there are some.
#
#   test_allreduce_perf.sh CLAIM threads PROGRAM
#   test_allreduce_perf.sh CLAIM mpi     PROGRAM MPIRUN...      MPIRUN... already holds the number of ranks
#
#   columns     -b 1K -e 256K -f 2: a row for each size, every element right, the fields where nccl-tests have them
#   types       all types and operations, sizes that are no multiple of anything
#   self_test   one spoiled bit is found, and is the exit status
#   peers       the limit, and under mpirun MPI, beside a gradient in 5 tensors: every element right in all ways
#   gloo        each of gloo's algorithms, under mpirun only
#   csv         says the same as the table
#   json        parses and says the same; skipped (77) without python3
#   options     wrong ones are refused, and --help is not
set -eu

claim=$1
transport=$2
program=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

# run STATUS OPTION...: leaves stdout in $work/output; fails unless the exit status is STATUS.
run() {
    expected=$1
    shift
    status=0
    if [ "$transport" = threads ]; then
        "$program" --ranks 2 "$@" >"$work/output" 2>"$work/errors" || status=$?
    else
        # shellcheck disable=SC2086 # launcher is a list of words
        $launcher "$program" "$@" >"$work/output" 2>"$work/errors" || status=$?
    fi
    [ "$status" -eq "$expected" ] || fail "exit status $status, not $expected: $*"
}
launcher=$*

# rows COUNT PEER: so many rows, nothing wrong in any, sizes and bandwidths that agree, and the footer.
rows() {
    awk -v rows="$1" -v fields="$2" '
        function bad(text) { print text ": " $0; failed = 1 }
        /^# Out of bounds values : 0 OK$/ { is_ok = 1 }
        /^# Avg bus bandwidth    : [0-9.]+$/ { has_average = 1 }
        /^#/ { next }
        {
            seen++
            width = $3 == "double" ? 8 : ($3 == "float" ? 4 : 2)
            if (NF != fields) bad("fields")
            if ($1 != $2 * width) bad("size is not count x width")
            if ($9 != 0 || $13 != 0 || (fields == 17 && $15 != "0" && $15 != "N/A")) bad("wrong values")
            for (time = 6; time <= 10; time += 4) {
                if ($time <= 0) bad("no time")
                difference = $(time + 1) - $1 / $time / 1000
                # The columns have two decimals.
                if (difference > 0.006 + $(time + 1) / 50 || -difference > 0.006 + $(time + 1) / 50) bad("algbw")
                if ($(time + 1) != $(time + 2)) bad("busbw of 2 ranks is algbw")
            }
        }
        END {
            if (seen != rows) { print seen " rows, not " rows; failed = 1 }
            if (!is_ok || !has_average) { print "no footer"; failed = 1 }
            exit failed
        }' "$work/output" || fail "the table"
    [ ! -s "$work/errors" ] || fail "stderr is not empty"
}

# ways ROWS PEERS: so many rows, with columns of scattered and of so many peers, and nothing wrong anywhere.
ways() {
    awk -v rows="$1" -v fields=$((16 + 4 * $2)) '
        function bad(text) { print text ": " $0; failed = 1 }
        /^# Out of bounds values : 0 OK$/ { is_ok = 1 }
        /^#/ { next }
        {
            seen++
            if (NF != fields) bad("fields")
            if ($14 <= 0 || $15 != 0 || $16 <= 0) bad("scattered")
            for (peer = 17; peer < fields; peer += 4)
                if ($peer <= 0 || $(peer + 1) != 0 || $(peer + 2) <= 0 || $(peer + 3) <= 0) bad("a peer")
        }
        END {
            if (seen != rows) { print seen " rows, not " rows; failed = 1 }
            if (!is_ok) { print "no footer"; failed = 1 }
            exit failed
        }' "$work/output" || fail "the table"
}

case $claim in
columns)
    run 0 -b 1K -e 256K -f 2
    rows 9 13
    if [ "$transport" = mpi ]; then
        run 0 -b 1K -e 256K -f 4 -d all -o all -n 3 -w 1 --peer mpi
        rows 40 17
    fi
    ;;
types)
    run 0 --minbytes 1000 --maxbytes 90000 --stepbytes 30001 --datatype all --op all --iters 3 --warmup_iters 1
    rows 24 13
    run 0 -b 8 -e 0.25K -f 2 -d all -o all -n 2 -w 1 -c 1 --progress caller
    rows 48 13
    ;;
self_test)
    # mpirun takes its time to end when a rank fails.
    types="float double half bfloat16"
    [ "$transport" = threads ] || types=float
    for type in $types; do
        run 1 -b 1K -e 4K -f 2 -n 2 -w 1 -d $type -o all --self-test
        grep -qx '# Out of bounds values : 1 FAILED' "$work/output" || fail "one wrong value was not counted"
        grep -v '^#' "$work/output" | awk '{ wrong += $9 + $13; if (NR == 1 && $9 != 1) exit 1 } END { exit wrong != 1 }' ||
            fail "the wrong value is not in its row"
    done
    ;;
peers)
    # Sizes that are no multiple of anything, and that are large enough for the ratios to have digits.
    if [ "$transport" = mpi ]; then
        run 0 -b 40004 -e 90000 -i 30001 -d float -o all -n 3 -w 1 --tensors 5 --peer mpi,limit
        ways 4 2
    else
        run 0 -b 40004 -e 90000 -i 30001 -d float -o all -n 3 -w 1 --tensors 5 --peer limit
        ways 4 1
        run 0 --ranks 1 -b 4K -n 3 --tensors 5 --peer limit --peer-malloc default
        run 0 --ranks 3 -b 8 -e 64K -f 2 -d all -n 3 --tensors 5 --peer limit
        run 0 -b 1K -n 3 --peer limit --ways in-place
        grep -v '^#' "$work/output" | awk '{ exit !($6 == "N/A" && $10 > 0 && $16 == "N/A" && $17 != "N/A") }' ||
            fail "--ways does not choose"
    fi
    ;;
gloo)
    run 0 -b 40004 -e 90000 -i 30001 -n 3 -w 1 --tensors 5 --peer gloo
    ways 2 4
    run 0 -b 4K -n 3 -w 1 --tensors 5 --peer gloo-bcube -d double
    ways 1 1
    ;;
csv)
    run 0 -b 40004 -e 90000 -i 30001 -n 3 -w 1 --tensors 5 --peer limit --csv "$work/file.csv"
    ways 2 1
    grep -v '^#' "$work/output" | awk '{ print $1 " out-of-place " $6; print $1 " in-place " $10
        print $1 " scattered " $14; print $1 " limit " $17 }' >"$work/table"
    # As many digits as the table has.
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
        NF != 17 || $column["wrong"] != 0 || $column["iters"] != 3 || $column["ranks"] != 2 { exit 1 }
        { time = $column["time_us"]
          printf "%s %s %.*f\n", $column["size"], $column["way"], time < 100 ? 2 : (time < 10000 ? 1 : 0), time }' \
        "$work/file.csv" >"$work/lines" || fail "the CSV"
    # The last digit may be rounded either way.
    paste -d ' ' "$work/table" "$work/lines" | awk '$1 != $4 || $2 != $5 || ($3 - $6) ^ 2 > 1 { exit 1 }
        END { exit NR != 8 }' || fail "the CSV is not the table"
    run 0 -b 1K -n 3 -c 0 --csv -
    awk -F, 'NR > 1 && $NF != "" { exit 1 } END { exit NR != 3 }' "$work/output" || fail "CSV alone, unchecked"
    ;;
json)
    command -v python3 >/dev/null || {
        echo "skipped: there is no python3"
        exit 77
    }
    run 0 -b 1K -e 16K -f 4 -d all -n 4 -w 2 --json "$work/file.json"
    rows 12 13
    cp "$work/output" "$work/table"
    run 0 -b 1K -e 4K -f 4 -n 4 -w 2 -c 0 --tensors 5 --peer limit --json -
    python3 - "$work/file.json" "$work/table" "$work/output" <<'PYTHON' || fail "the JSON"
import json
import sys

report = json.load(open(sys.argv[1]))
table = [line.split() for line in open(sys.argv[2]) if not line.startswith("#")]
assert report["json_version"] == 2 and report["peers"] == {}
assert report["ranks"] == 2 and report["ok"] is True and report["out_of_bounds"] == 0, report
assert len(report["rows"]) == len(table) == 12
for row, line in zip(report["rows"], table):
    assert [str(row["size"]), str(row["count"]), row["type"], row["redop"]] == line[:4], (row, line)
    assert row["peers"] == {} and row["scattered"] is None and row["limit_share"] is None, row
    for way, column in (("out_of_place", 5), ("in_place", 9)):
        figures = row[way]
        assert abs(figures["time_us"] - float(line[column])) <= 0.01 * figures["time_us"] + 0.01, (row, line)
        assert 0 < figures["min_us"] <= figures["time_us"] <= figures["p99_us"] <= figures["max_us"], figures
        assert figures["warmup_first_us"] > 0 and figures["warmup_median_us"] > 0, figures
        assert abs(figures["busbw"] - row["size"] / figures["time_us"] / 1e3) <= 0.01 * figures["busbw"] + 1e-5, figures
        assert figures["wrong"] == 0 and figures["stalls"] in range(5), figures
    assert row["in_place"]["bytes_copied"] == 0, row
unchecked = json.load(open(sys.argv[3]))
assert unchecked["ok"] is None and len(unchecked["rows"]) == 2, unchecked
for row in unchecked["rows"]:
    share = row["peers"]["limit"]["time_us"] / row["in_place"]["time_us"]
    assert row["in_place"]["wrong"] is None and row["scattered"]["time_us"] > 0, row
    assert abs(row["limit_share"] - share) <= 0.05 * share, row
assert list(unchecked["peers"]) == ["limit"] and unchecked["options"]["tensors"] == 5, unchecked
PYTHON
    run 1 -b 1K --json "$work/no/such/directory"
    ;;
options)
    run 0 --help
    grep -q -e '--warmup_iters' "$work/output" || fail "--help does not help"
    if [ "$transport" = mpi ]; then
        run 2 --ranks 2 # one is enough: mpirun takes its time to end when a rank fails
        grep -q 'mpirun' "$work/errors" || fail "says nothing about --ranks"
    else
        for wrong in '--minbytes 0' '-b 2K -e 1K' '-d int8' '-o max' '-n 0' '-w 0' '-c 2' '-f 0' '-b 1X' '-b nan' \
            '-b 2' '--ranks 0' '--peer mpi' '--peer nobody' '--peer limit,limit' '--peer limit,' '--peer-malloc nobody' \
            '--tensors 0' '--ways in-place,nobody' '--json - --csv -' '--progress nobody' '--self-test -c 0' '--no-such-option' \
            '--ctas 4' '--clock gpu' 'word'; do
            # shellcheck disable=SC2086 # two words where there are two
            run 2 $wrong
            [ -s "$work/errors" ] || fail "says nothing about $wrong"
        done
    fi
    ;;
*)
    echo "there is no claim named $claim"
    exit 2
    ;;
esac
echo "$claim, $transport: ok"
