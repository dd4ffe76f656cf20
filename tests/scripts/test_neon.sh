#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The library for AArch64: cross-compiles it, looks for NEON's vectors in its inner loops, and has an emulator reduce
# with them. CMake gives the tools through the environment. Without the cross compiler or the emulator the test fails:
# nothing else compiles for that machine.
set -eu

if [ "$#" -ne 1 ]; then
    echo "usage: CMAKE=... GENERATOR=... test_neon.sh SOURCE_DIR" >&2
    exit 2
fi
for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-objdump qemu-aarch64-static; do
    if ! command -v "$tool" >/dev/null; then
        echo "FAILED: there is no $tool (Debian and Ubuntu: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)"
        exit 1
    fi
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

"$CMAKE" -S "$1" -B "$scratch" -G "$GENERATOR" --toolchain "$1/cmake/toolchains/aarch64-linux-gnu.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DGRADSYNC_WERROR=ON -DGRADSYNC_MPI=OFF -DGRADSYNC_GLOO=OFF \
    -DGRADSYNC_BUILD_EXAMPLES=OFF >"$scratch/log" 2>&1 &&
    "$CMAKE" --build "$scratch" --target allreduce_perf --parallel 2 >>"$scratch/log" 2>&1 || {
    cat "$scratch/log"
    exit 1
}
library=$scratch/src/libgradsync.so

claim() {
    local text=$1
    shift
    if ! "$@"; then
        echo "FAILED: $text"
        failures=$((failures + 1))
    fi
}

# has FUNCTION INSTRUCTION: on whole vectors, v0.4s or v0.2d
has() {
    aarch64-linux-gnu-objdump --disassemble="$1" "$library" | grep -Eq "[[:space:]]$2[[:space:]]+v[0-9]+\.(4s|2d),"
}

never_fuses() {
    ! aarch64-linux-gnu-objdump -d "$library" | grep -E "[[:space:]]fn?m(la|ls|add|sub)[[:space:]]"
}

# The reduction's additions and its division, then one instruction that each of the others cannot do without.
for function in reduce_at_once_f32 reduce_at_once_f64; do
    for instruction in fadd fmul fdiv; do
        claim "$function adds and divides vectors: $instruction" has "$function" "$instruction"
    done
done
for kernel in add_f32:fadd add_f64:fadd min_f32:fcmgt max_f64:fcmgt scale_f32:fmul divide_f32:fdiv accumulate_f32:fadd \
    accumulate_f64:fmul widen_half:scvtf narrow_half:fadd widen_bfloat:shll narrow_bfloat:cmhi square_sum_f32:fadd \
    is_finite_f32:cmeq; do
    claim "${kernel%:*} works on vectors: ${kernel#*:}" has "${kernel%:*}" "${kernel#*:}"
done
claim "no product is added without being rounded" never_fuses

# Every element is compared.
claim "an emulated machine reduces right" qemu-aarch64-static -L /usr/aarch64-linux-gnu \
    "$scratch/benchmarks/allreduce_perf" --ranks 2 --minbytes 1K --maxbytes 64K --stepfactor 8 --iters 2 --warmup_iters 1 \
    --datatype all --op all

exit "$((failures > 0))"
