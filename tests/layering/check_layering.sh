#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Who may include whom in src/, and where foreign headers and new threads may appear. Prints one line per violation; exit status 1 if
# there is any.
set -eu

if [ "$#" -ne 1 ] || [ "$1" = --help ]; then
    echo "usage: check_layering.sh ROOT"
    echo "Checks the includes of ROOT/src against the table of rooms, who starts threads, and that its file names are unique."
    [ "${1:-}" = --help ]
    exit
fi
cd "$1"

files=$(find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort)
if [ -z "$files" ]; then
    echo "$1/src holds no sources" >&2
    exit 2
fi

status=0
# File names hold no blanks: the second check would show it.
# shellcheck disable=SC2086
awk '
BEGIN {
    # room: the rooms it may include besides itself; * is everything.
    may["api"] = may["train"] = may["cli"] = "*"
    may["sync"] = "plan wire device collective observe base"
    may["wire"] = "device base"
    may["device"] = may["collective"] = "base"
    may["observe"] = "plan base"
    may["plan"] = "base"
    may["base"] = ""

    # foreign header: the files that include it, so that the rest of the library builds without it.
    home["mpi.h"] = "src/collective/collective_mpi.c src/collective/messages_mpi.c"
    home["gradsync/gradsync_mpi.h"] = "src/api/comm_mpi.c"
    home["cuda_runtime_api.h"] = "src/device/device_cuda.c"
    home["cuda_runtime.h"] = "src/device/cuda_launch.cuh"
    home["nccl.h"] = "src/collective/library_nccl.h"
    home["gradsync/gradsync_cuda.h"] = "src/api/comm_nccl.c src/api/step_cuda.c"
}

function violation(text) {
    printf "%s:%d: %s\n", FILENAME, FNR, text
    violations++
}

FNR == 1 {
    split(FILENAME, part, "/")
    room = part[2]
    if (FILENAME !~ /^src\/[^\/]+\/[^\/]+$/)
        violation("sources lie in src/<room>/")
    else if (!(room in may))
        violation("there is no room " room " in the table of rooms")
}

/^[ \t]*#[ \t]*include/ {
    header = $0
    sub(/^[^<"]*[<"]/, "", header)
    sub(/[>"].*$/, "", header)
    if (header in home && index(home[header] " ", FILENAME " ") == 0)
        violation(header " is included only by " home[header])

    other = header
    if (!sub(/\/.*$/, "", other) || other == room || !(other in may))
        next
    if (may[room] != "*" && index(" " may[room] " ", " " other " ") == 0)
        violation(room " may not include " header " (may include: " (may[room] == "" ? "nothing" : may[room]) ")")
}

/pthread_create[ \t]*\(/ && FILENAME != "src/base/thread.c" {
    violation("threads are started with gs_thread_start of base/thread.h, which keeps signals away")
}

END { exit violations > 0 }
' $files || status=1

# shellcheck disable=SC2086
repeated=$(printf '%s\n' $files | sed 's,.*/,,' | LC_ALL=C sort | uniq -d)
for name in $repeated; do
    echo "$name: several files in src have this name:" $(printf '%s\n' $files | grep "/$name\$")
    status=1
done
exit $status
