#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What overlap and link_rate print, on 2 ranks. Times are not looked at: only that there are some.
#
#   test_overlap.sh OVERLAP LINK_RATE MPIRUN...      MPIRUN... already holds the number of ranks
set -eu

overlap=$1
link_rate=$2
shift 2
launcher=$*
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

# shellcheck disable=SC2086 # launcher is a list of words
expect 0 $launcher "$overlap" --bytes 256K --compute-ms 4 --buckets 4 --rounds 2 --json "$work/file.json"
grep -q '^# 262144 bytes in 4 buckets of 65536, 2 rounds' "$work/output" || fail "the header"
for way in 'compute' 'MPI alone' 'library alone' 'MPI after' 'MPI_Iallreduce' 'MPI in a thread' 'library'; do
    grep -Eq "^$way( +[0-9]+\.[0-9]+){5}\$|^MPI in a thread +N/A\$" "$work/output" || fail "no row $way"
    [ "$way" = 'MPI in a thread' ] ||
        grep -Eq "\"way\": \"$way\", \"wall_ms\": [0-9.]*[1-9]" "$work/file.json" || fail "no $way in the JSON"
done
if command -v python3 >/dev/null; then
    expect 0 python3 -m json.tool "$work/file.json"
fi

# shellcheck disable=SC2086
expect 0 $launcher "$link_rate" --bytes 100000 --rounds 2
grep -Eq '^# link_rate: one way [0-9.]+ Mbit/s, both ways [0-9.]+ Mbit/s each, round trip [0-9.]+ us$' "$work/output" ||
    fail "the rates"

for program in "$overlap" "$link_rate"; do
    expect 0 "$program" --help
    grep -q -e '--bytes' "$work/output" || fail "--help does not help"
    expect 2 "$program" --bytes
    expect 2 "$program" --bytes 1X
    expect 2 "$program" --rounds 0
    expect 2 "$program" --no-such-option 1
done
echo "overlap: ok"
