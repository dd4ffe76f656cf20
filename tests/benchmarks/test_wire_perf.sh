#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What wire_perf prints, and that it would notice a wrong result. Times are not looked at.
#
#   test_wire_perf.sh PROGRAM [MPIRUN...]
set -eu

program=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

small='--bytes 256K --tensors 7 --rounds 2 --warmup 1'
# shellcheck disable=SC2086 # several words
expect 0 "$program" --ranks 3 $small --json "$work/file.json"
for wire in native 'native, looked at' float16 bfloat16 int8 'int8, stochastic' 'int8, feedback' float8 \
    'top-k 10 %, feedback'; do
    grep -Eq "^$wire +[0-9.]+ +[0-9.]+ +[0-9.]+ +0 +[0-9.e+-]+\$" "$work/output" || fail "no row $wire"
done
if command -v python3 >/dev/null; then
    expect 0 python3 -m json.tool "$work/file.json"
fi

# shellcheck disable=SC2086
expect 1 "$program" --ranks 2 $small --self-test
grep -q 'float8: the result is wrong' "$work/output" || fail "the spoiled element is not noticed"

if [ "$#" -gt 0 ]; then
    # shellcheck disable=SC2086
    expect 0 "$@" "$program" $small
    grep -q '2 ranks on 1 host' "$work/output" || fail "mpirun's ranks are not there"
fi

expect 0 "$program" --help
grep -q -e '--self-test' "$work/output" || fail "--help does not help"
for wrong in '--rounds 0' '--bytes 100' '--tensors 0' '--rounds' '--no-such-option 1' 'word'; do
    # shellcheck disable=SC2086 # two words
    expect 2 "$program" $wrong
done
echo "wire_perf: ok"
