#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a program under valgrind: every invalid access and every lost block fails it. Exit status 77 means that there
# is no valgrind.
set -eu

if [ "$#" -eq 0 ]; then
    echo "usage: valgrind.sh PROGRAM ARGUMENT..." >&2
    exit 2
fi
if ! command -v valgrind >/dev/null; then
    echo "skipped: there is no valgrind"
    exit 77
fi
# Fair scheduling, because valgrind runs one thread at a time and ranks that poll would starve the one they wait for.
exec valgrind --quiet --error-exitcode=99 --fair-sched=yes --leak-check=full --show-leak-kinds=definite,indirect \
    --errors-for-leak-kinds=definite,indirect "$@"
