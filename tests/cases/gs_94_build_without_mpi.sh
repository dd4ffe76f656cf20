#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# GS-94: builds the library and tests/cases/gs_94_single_process.c in a tree of their own without MPI, and runs the
# program there. CMake gives the tools through the environment.
set -eu

if [ "$#" -ne 1 ]; then
    echo "usage: CMAKE=... GENERATOR=... CC=... gs_94_build_without_mpi.sh SOURCE_DIR" >&2
    exit 2
fi
program=cases.gs_94_single_process

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Not optimised: what is built here runs once.
"$CMAKE" -S "$1" -B "$scratch" -G "$GENERATOR" -DCMAKE_C_COMPILER="$CC" -DCMAKE_BUILD_TYPE=Debug -DGRADSYNC_MPI=OFF \
    -DGRADSYNC_CUDA=OFF -DBUILD_TESTING=ON -DGRADSYNC_BUILD_EXAMPLES=OFF -DGRADSYNC_BUILD_BENCHMARKS=OFF \
    >"$scratch/log" 2>&1 &&
    "$CMAKE" --build "$scratch" --target "$program" >>"$scratch/log" 2>&1 || {
    cat "$scratch/log"
    exit 1
}

# A test that was skipped has not shown anything.
"$scratch/tests/programs/$program" --only 'GS_94_asking_for_mpi_*'
"$scratch/tests/programs/$program"
"$scratch/tests/programs/$program" --ranks 1
