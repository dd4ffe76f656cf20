#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Plants violations in a copy of the sources and expects check_layering.sh to name each file and line.
set -eu
check=$(dirname "$0")/check_layering.sh
root=$1
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

failures=0

# names_violation "what it shows" file-to-add-to line-to-add expected-words
names_violation() {
    rm -rf "$copy/src"
    cp -R "$root/src" "$copy/src"
    mkdir -p "$(dirname "$copy/$2")"
    printf '%s\n' "$3" >>"$copy/$2"
    line=$(wc -l <"$copy/$2")
    if output=$(sh "$check" "$copy" 2>&1); then
        echo "FAILED: $1: the planted line was not found"
    elif ! printf '%s\n' "$output" | grep -F "$2:$((line)): " | grep -qF "$4"; then
        echo "FAILED: $1: the violation is not named as $2:$((line)) ... $4:"
        printf '%s\n' "$output"
    else
        return 0
    fi
    failures=$((failures + 1))
}

names_violation "plan stays pure" src/plan/planted.c '#include "sync/pipeline.h"' "plan may not include sync/pipeline.h"
names_violation "base knows nothing" src/base/planted.h '#  include "plan/bucket_plan.h"' "may include: nothing"
names_violation "a door does not know the other" src/collective/planted.c '#include "device/device.h"' "collective may not"
names_violation "angle brackets are seen" src/wire/planted.c '#include <api/comm.h>' "wire may not include api/comm.h"
names_violation "an existing file" "$(cd "$root" && find src/base -name '*.c' | head -n 1)" '#include "api/x.h"' "base may not"
names_violation "mpi.h has one home" src/sync/planted.c '#include <mpi.h>' "included only by src/collective/collective_mpi.c"
names_violation "the MPI header has one home" src/sync/planted.c '#include <gradsync/gradsync_mpi.h>' "included only by"
names_violation "the CUDA runtime has one home" src/sync/planted.c '#include <cuda_runtime_api.h>' "included only by src/device/device_cuda.c"
names_violation "kernels are looked at" src/device/planted.cu '#include "collective/shard.h"' "device may not"
names_violation "nccl.h has one home" src/device/planted.cuh '#include <nccl.h>' "included only by src/collective/library_nccl.h"
names_violation "the CUDA header has its homes" src/api/planted.c '#include <gradsync/gradsync_cuda.h>' "included only by"
names_violation "threads are started in one place" src/sync/planted.c 'pthread_create(&thread, 0, run, 0);' "gs_thread_start"
names_violation "rooms are known" src/attic/planted.c 'int x;' "no room attic"

rm -rf "$copy/src"
cp -R "$root/src" "$copy/src"
mkdir -p "$copy/src/api" "$copy/src/sync"
echo 'typedef int x;' | tee "$copy/src/api/planted.h" >"$copy/src/sync/planted.h"
if sh "$check" "$copy" >"$copy/output"; then
    echo "FAILED: file names are unique: two planted.h were not found"
    failures=$((failures + 1))
elif ! grep -q "^planted.h: several" "$copy/output"; then
    echo "FAILED: file names are unique: planted.h is not named"
    cat "$copy/output"
    failures=$((failures + 1))
fi

[ "$failures" -eq 0 ]
