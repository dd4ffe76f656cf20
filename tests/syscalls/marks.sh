#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A mark that completes no bucket makes no system call, and registering one does not search files: watches some with
# strace. Exit status 77: not possible here.
set -eu

if [ "$#" -ne 1 ]; then
    echo "usage: marks.sh PROGRAM (tests/syscalls/marks.c)"
    [ "${1:-}" = --help ]
    exit
fi
program=$1

command -v strace >/dev/null || {
    echo "skipped: there is no strace"
    exit 77
}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
if ! strace -f -o "$directory/try" true 2>"$directory/refused"; then
    echo "skipped: strace may not trace here: $(head -n 1 "$directory/refused")"
    exit 77
fi

# Each line of the trace begins with the thread's number. Prints the calls that a thread made between its first and its
# second getppid, its third and its fourth, and so on; then how many such stretches there were.
# shellcheck disable=SC2016
between_markers='
    $2 ~ /^getppid\(/ { is_watched[$1] = !is_watched[$1]; if (!is_watched[$1]) stretches++; next }
    $2 == "<..." && $3 == "getppid" { next } # the rest of a marker, where threads talk at the same time
    is_watched[$1] { print "a system call among the marks: " $0 }
    END { print stretches + 0 " stretches" }'

watch() {
    strace -f -o "$directory/trace" "$@"
    awk "$between_markers" "$directory/trace"
}

found=$(watch "$program")
if [ "$found" != "4 stretches" ]; then
    echo "$found"
    exit 1
fi
# Nor does registering gradients look for a driver of GPUs in the file system, each time anew.
if grep libcuda "$directory/trace"; then
    echo "registered gradients, and looked for libcuda in files"
    exit 1
fi
# It would not be worth much if it did not find one that is there.
found=$(watch "$program" spoiled | grep -c "getpid(") || true
if [ "$found" -ne 4 ]; then
    echo "of 4 system calls among the marks, $found were found"
    exit 1
fi
