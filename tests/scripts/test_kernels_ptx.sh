#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What nvcc makes of the kernels, with the build's own options: loads and stores of 16 bytes (8 on the narrower side),
# no multiplication fused with an addition, no subnormal flushed, and division rounded to nearest. Without a GPU nothing
# else would notice.
set -eu

if [ "$#" -ne 1 ]; then
    echo "usage: test_kernels_ptx.sh BUILD_DIR" >&2
    exit 2
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# One form, as text, in place of all forms as an object.
for source in device_cuda_kernels topk_cuda_kernels; do
    command=$(sed -n "s/^ *\"command\": \"\(.*-c [^ ]*$source\.cu\) -o .*/\1/p" "$1/compile_commands.json")
    if [ -z "$command" ]; then
        echo "FAILED: $1/compile_commands.json does not say how $source.cu is compiled"
        exit 1
    fi
    command=$(printf '%s\n' "$command" | sed 's/--generate-code=[^ ]*//g; s/ -c / --ptx -arch=compute_80 /')
    (cd "$1" && eval "$command -o '$scratch/$source.ptx'")
done

awk '
function wants(pattern, what) {
    if (!(found ~ pattern)) {
        print "FAILED: " kernel " has no " what
        failures++
    }
}

function check() {
    if (kernel !~ /(Encode|Decode|Combine)/)
        return
    kernels++
    wants("ld\\.global\\.cg\\.v[24]\\.u32", "load of several words")
    wants("st\\.global\\.cg\\.v[24]\\.u32", "store of several words")
    wants("\\.v4\\.u32", "access of 16 bytes")
}

/\.entry/ {
    check()
    kernel = $0
    sub(/.*\.entry /, "", kernel)
    sub(/\(.*/, "", kernel)
    found = ""
}
match($0, /(ld|st)\.global\.cg\.v[24]\.u32/) { found = found " " substr($0, RSTART, RLENGTH) }
/[ \t]fma\./ || /\.ftz/ || /div\.(approx|full)/ {
    print "FAILED: " kernel ": " $0
    failures++
}
/div\.rn\.f32/ { divisions++ }

END {
    check()
    if (kernels < 24 || divisions == 0) {
        print "FAILED: there are " kernels + 0 " kernels and " divisions + 0 " divisions in it"
        failures++
    }
    exit failures > 0
}
' "$scratch"/*.ptx
