#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What idle_cost prints, on 2 ranks. Times are not looked at.
#
#   test_idle_cost.sh threads PROGRAM
#   test_idle_cost.sh mpi     PROGRAM MPIRUN...      MPIRUN... already holds the number of ranks
set -eu

transport=$1
program=$2
shift 2
launcher=$*
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

options="--compute-ms 4 --steps 3 --rounds 3 --json $work/file.json"
# shellcheck disable=SC2086 # lists of words
if [ "$transport" = threads ]; then
    expect 0 "$program" --ranks 2 $options
    # All the others are the library's, one for each rank; but a sanitizer may have a thread of its own.
    others_alone=$(awk '$1 == "alone" { print $NF }' "$work/output")
    others_idle=$(awk '$1 == "idle" { print $NF }' "$work/output")
    [ "$others_alone" -le 1 ] || fail "somebody else runs alone"
    [ "$others_idle" -eq $((others_alone + 2)) ] || fail "there are no helpers to be idle"
else
    expect 0 $launcher "$program" $options
fi
grep -q ', 2 ranks on ' "$work/output" || fail "not 2 ranks"
for setting in alone idle stepping; do
    grep -Eq "^$setting +[0-9]+\.[0-9]+ +-?[0-9]+\.[0-9]+ +[0-9]+\.[0-9] +[0-9]+ +[0-9]+\$" "$work/output" ||
        fail "no row $setting"
    grep -q "\"setting\": \"$setting\", \"wall_ms\": " "$work/file.json" || fail "no $setting in the JSON"
done
if command -v python3 >/dev/null; then
    expect 0 python3 -m json.tool "$work/file.json"
fi

if [ "$transport" = threads ]; then
    expect 0 "$program" --help
    grep -q -e '--compute-ms' "$work/output" || fail "--help does not help"
    for wrong in '--ranks 0' '--ranks 1X' '--rounds' '--steps 0' '--no-such-option 1'; do
        # shellcheck disable=SC2086 # two words
        expect 2 "$program" $wrong
    done
fi
echo "idle_cost, $transport: ok"
