#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What codec_perf_cuda prints, on the simulator, and that it would notice a wrong result. Times are not looked at.
#
#   test_codec_perf_cuda.sh PROGRAM
set -eu

program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/expect.sh"

SIMCUDA_STRICT=1
export SIMCUDA_STRICT
expect 0 "$program" --bytes 5K,64K --rounds 2 --calls 2 --json "$work/file.json"
for size in 5 64; do
    for wire in native float16 bfloat16; do
        for task in encode 'encode, findings' decode 'decode, norm' combine; do
            grep -Eq "^$wire +$task +$size +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+%\$" "$work/output" ||
                fail "no row $wire, $task, $size KiB"
        done
    done
done

# Bytes read and written of 16384 elements.
for row in native,encode,131072 float16,decode,98304 bfloat16,combine,40960; do
    wire=${row%%,*}
    rest=${row#*,}
    grep -q "\"wire\": \"$wire\", \"work\": \"${rest%,*}\", \"bytes\": 65536, \"bytes_moved\": ${rest#*,}," \
        "$work/file.json" || fail "$row is missing"
done
if command -v python3 >/dev/null; then
    expect 0 python3 -m json.tool "$work/file.json"
fi

expect 1 "$program" --bytes 64K --rounds 1 --calls 1 --self-test
grep -q 'encode: an element is wrong' "$work/output" || fail "the spoiled bit is not named"
SIMCUDA_DEVICES=0 expect 1 "$program" --bytes 64K
grep -q 'looking for a GPU' "$work/output" || fail "that there is no GPU is not said"

expect 0 "$program" --help
grep -q -e '--self-test' "$work/output" || fail "--help does not help"
for wrong in '--rounds 0' '--bytes 100' '--bytes 64K,' '--rounds' '--no-such-option 1'; do
    # shellcheck disable=SC2086 # two words
    expect 2 "$program" $wrong
done
