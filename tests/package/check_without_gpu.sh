#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The library with CUDA in it needs no library of CUDA's or NCCL's to be loaded, nor one of C++, and has ranks on CPUs
# train where there is neither GPU nor driver: the program is hidden from both.
set -eu

if [ "$#" -lt 3 ]; then
    echo "usage: check_without_gpu.sh READELF LIBRARY PROGRAM [ARGUMENT...]" >&2
    exit 2
fi
readelf=$1 library=$2
shift 2

needed=$("$readelf" -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
if [ -z "$needed" ]; then
    echo "$readelf names no library that $library needs"
    exit 1
fi
if printf '%s\n' "$needed" | grep -E '^lib(cuda|cudart|nccl|nvrtc|cublas|stdc\+\+)[.-]'; then
    echo "FAILED: the library needs the above to be loaded"
    exit 1
fi
if ! "$readelf" -W -S "$library" | grep -q nv_fatbin; then
    echo "FAILED: the library holds no kernels"
    exit 1
fi

CUDA_VISIBLE_DEVICES= "$@"
