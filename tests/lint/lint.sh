#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The checks that need no program to run. Exit status 77 means that the tool is not there, and nothing was checked.
set -eu

usage="usage: lint.sh all|format|format-all|tidy|cppcheck SOURCE_DIR BUILD_DIR
  all         format, tidy and cppcheck, as far as the tools are there
  format      checks the layout of every C file against .clang-format
  format-all  rewrites every C file to it
  tidy        runs clang-tidy over src, as .clang-tidy says; BUILD_DIR holds compile_commands.json
  cppcheck    runs cppcheck over src"

if [ "$#" -ne 3 ]; then
    echo "$usage"
    [ "${1:-}" = --help ]
    exit
fi
script=$(cd "$(dirname "$0")" && pwd)/lint.sh
build=$3
cd "$2"

# Versions disagree about layout and have different checks, so one is used everywhere.
llvm=14

skip() {
    echo "skipped: $1"
    exit 77
}

# find_llvm clang-format: prints the command that is of the wanted version
find_llvm() {
    for command in "$1-$llvm" "$1"; do
        if "$command" --version 2>/dev/null | grep -q "version $llvm\\."; then
            echo "$command"
            return
        fi
    done
}

c_files() {
    find include src tests examples benchmarks \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print | LC_ALL=C sort
}

case $1 in
all)
    status=0
    for check in format tidy cppcheck; do
        echo "$check"
        sh "$script" "$check" . "$build" || [ "$?" -eq 77 ] || status=1
    done
    exit "$status"
    ;;
format | format-all)
    clang_format=$(find_llvm clang-format)
    [ -n "$clang_format" ] || skip "there is no clang-format $llvm"
    if [ "$1" = format ]; then
        c_files | xargs "$clang_format" --dry-run --Werror
    else
        c_files | xargs "$clang_format" -i
    fi
    ;;
tidy)
    clang_tidy=$(find_llvm clang-tidy)
    [ -n "$clang_tidy" ] || skip "there is no clang-tidy $llvm"
    # Only what this build compiles: without MPI some sources are left out.
    for source in src/*/*.c; do
        grep -qF "/$source\"" "$build/compile_commands.json" && echo "$source"
    done | xargs -P 2 -n 4 "$clang_tidy" -p "$build" --quiet \
        --extra-arg=-Wno-unknown-warning-option 2>"$build/clang_tidy.stderr" || {
        grep -v 'warnings\{0,1\} generated' "$build/clang_tidy.stderr"
        exit 1
    }
    ;;
cppcheck)
    command -v cppcheck >/dev/null || skip "there is no cppcheck"
    # objectIndex takes `&array[first]`, used as an array, for the address of one element.
    cppcheck --quiet --error-exitcode=1 --inline-suppr --std=c11 --enable=warning,performance,portability \
        --suppress=objectIndex --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unmatchedSuppression \
        -D_GNU_SOURCE= -DGS_HAVE_MPI=1 -D__x86_64__=1 -D__GNUC__=12 -D__STDC_VERSION__=201112L \
        -I include -I src src
    ;;
*)
    echo "$usage" >&2
    exit 2
    ;;
esac
