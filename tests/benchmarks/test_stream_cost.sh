#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What stream_cost prints. Times are not looked at.
#
#   test_stream_cost.sh PROGRAM
set -eu

program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

expect 0 "$program" --buckets 1,5 --steps 3 --json "$work/file.json"
for way in 'in place' scattered bfloat16; do
    for buckets in 1 5; do
        number='[0-9]+(\.[0-9]+)?'
        times="$number +$number"
        grep -Eq "^$way +$buckets +$((buckets * 8)) \\| +$times \\| +$times \\| +$times\$" "$work/output" ||
            fail "no row $way, $buckets buckets"
        grep -q "\"way\": \"$way\", \"buckets\": $buckets," "$work/file.json" || fail "no $way, $buckets in the JSON"
    done
done
if command -v python3 >/dev/null; then
    expect 0 python3 -m json.tool "$work/file.json"
fi

expect 0 "$program" --help
grep -q -e '--buckets' "$work/output" || fail "--help does not help"
for wrong in '--steps 0' '--buckets 1,' '--buckets 0' '--steps' '--no-such-option 1'; do
    # shellcheck disable=SC2086 # two words
    expect 2 "$program" $wrong
done
expect 1 "$program" --buckets 1 --steps 1 --json "$work/no/such/file"
