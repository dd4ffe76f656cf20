#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a job, and passes if it ends with the status that is expected, in time, and without MPI complaining.
set -eu

if [ "$#" -lt 3 ]; then
    echo "usage: job.sh STATUS SECONDS COMMAND..." >&2
    exit 2
fi
expected=$1
seconds=$2
shift 2

output=$(mktemp)
trap 'rm -f "$output"' EXIT

start=$(date +%s)
status=0
"$@" >"$output" 2>&1 || status=$?
took=$(($(date +%s) - start))
cat "$output"

if [ "$status" -ne "$expected" ]; then
    echo "the job ended with status $status, not $expected"
    exit 1
fi
if [ "$took" -ge "$seconds" ]; then
    echo "the job took $took s, not less than $seconds s"
    exit 1
fi
# A job that fails is reported by mpirun; of a good one nobody has anything to say.
if [ "$expected" -eq 0 ] && grep -qiE 'mpi_|error|signal|abort' "$output"; then
    echo "there were complaints about the job"
    exit 1
fi
