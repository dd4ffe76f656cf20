#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the build into an empty prefix, moves it, and builds and runs consumers against it: through CMake, through
# pkg-config, in C, in C++, and with MPI. CMake gives the tools through the environment; an empty name skips its part.
set -eu

if [ "$#" -ne 2 ]; then
    echo "usage: CMAKE=... CC=... CXX=... PKG_CONFIG=... LIBDIR=... MPIRUN=... CUDA=ON|OFF CUDA_ROOT=... NCCL=... \\
    test_package.sh SOURCE_DIR BUILD_DIR" >&2
    exit 2
fi
consumer=$1/tests/package/consumer
mpirun=$1/scripts/mpirun.sh
build=$2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "--- install, and move what was installed"
"$CMAKE" --install "$build" --prefix "$scratch/first" >"$scratch/install.log"
mv "$scratch/first" "$scratch/prefix"
prefix=$scratch/prefix
for file in include/gradsync/gradsync.h "$LIBDIR/libgradsync.so" "$LIBDIR/pkgconfig/gradsync.pc" \
    "$LIBDIR/cmake/gradsync/gradsync-config.cmake"; do
    [ -e "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done
# Debug information may name them, text may not.
if grep -rIlF -e "$scratch/first" -e "$build" "$prefix"; then
    echo "these installed files name directories of the build or of the installation"
    exit 1
fi

echo "--- find_package"
"$CMAKE" -S "$consumer" -B "$scratch/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" -DWITH_CXX="${CXX:+ON}" -DWITH_MPI="${MPIRUN:+ON}" -DWITH_CUDA="$CUDA" \
    -DCUDAToolkit_ROOT="$CUDA_ROOT" -DGRADSYNC_NCCL_INCLUDE_DIR="$NCCL"
"$CMAKE" --build "$scratch/cmake"
"$scratch/cmake/consumer"
[ -z "$CXX" ] || "$scratch/cmake/consumer_cxx"
[ "$CUDA" != ON ] || "$scratch/cmake/consumer_cuda"
[ -z "$MPIRUN" ] || sh "$mpirun" "$MPIRUN" -n 2 "$scratch/cmake/consumer_mpi"

echo "--- pkg-config"
PKG_CONFIG_PATH=$prefix/$LIBDIR/pkgconfig
export PKG_CONFIG_PATH
cflags=$("$PKG_CONFIG" --cflags gradsync)
libs=$("$PKG_CONFIG" --libs gradsync)
# shellcheck disable=SC2086
"$CC" -std=c11 $cflags "$consumer/consumer.c" -o "$scratch/consumer" $libs
LD_LIBRARY_PATH=$prefix/$LIBDIR "$scratch/consumer"
if [ -n "$CXX" ]; then
    # shellcheck disable=SC2086
    "$CXX" -std=c++11 -x c++ $cflags "$consumer/consumer.c" -x none -o "$scratch/consumer_cxx" $libs
    LD_LIBRARY_PATH=$prefix/$LIBDIR "$scratch/consumer_cxx"
fi
