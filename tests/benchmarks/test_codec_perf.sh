#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What codec_perf prints, and that it would notice a wrong result. Times are not looked at.
#
#   test_codec_perf.sh PROGRAM
set -eu

program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

expect 0 "$program" --bytes 64K,1M --rounds 1 --json "$work/file.json"
for size in 64 1024; do
    for codec in float16 bfloat16 int8 'int8 stochastic' float8; do
        for task in encode 'encode, findings' decode combine; do
            grep -Eq "^$codec +$task +$size +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9]+% +[0-9.e-]+ +[0-9.e-]+\$" "$work/output" ||
                fail "no row $codec, $task, $size KiB"
        done
    done
done

# Bytes on the wire of 262144 elements.
for pair in float16:524288 bfloat16:524288 int8:266240 'int8 stochastic:266240' float8:263168; do
    grep -q "\"codec\": \"${pair%:*}\", \"work\": \"decode\", \"bytes\": 1048576, \"wire_bytes\": ${pair#*:}," \
        "$work/file.json" || fail "${pair%:*} has another wire"
done
if command -v python3 >/dev/null; then
    expect 0 python3 -m json.tool "$work/file.json"
fi

expect 1 "$program" --bytes 64K --rounds 1 --self-test
grep -q 'float16: an element is wrong' "$work/output" || fail "the spoiled element is not named"

expect 0 "$program" --help
grep -q -e '--self-test' "$work/output" || fail "--help does not help"
for wrong in '--rounds 0' '--bytes 100' '--bytes 64K,' '--rounds' '--no-such-option 1'; do
    # shellcheck disable=SC2086 # two words
    expect 2 "$program" $wrong
done
echo "codec_perf: ok"
