#!/bin/sh
# A test program as several processes that know each other by torchrun's variables, without torchrun and without MPI.
#
#     torchrun.sh RANKS SECONDS PROGRAM [ARGUMENTS]
#
# Prints what rank 0 says, and what another rank says that fails. Ends with rank 0's status, or with the first other one
# that is neither 0 nor 77.
set -u
if [ $# -lt 3 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 2
fi
ranks=$1
seconds=$2
shift 2
# Beneath the ports that the system gives away by itself, and another one for each process that starts this.
port=$((10000 + $$ % 20000))
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT

start() { # rank, and then the program
    rank=$1
    shift
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_HOSTID=rank-$rank \
        timeout "$seconds" "$@" >"$output/$rank" 2>&1
    echo $? >"$output/$rank.status"
}

rank=1
while [ "$rank" -lt "$ranks" ]; do
    start "$rank" "$@" &
    rank=$((rank + 1))
done
start 0 "$@"
wait
cat "$output/0"
result=$(cat "$output/0.status")
rank=1
while [ "$rank" -lt "$ranks" ]; do
    status=$(cat "$output/$rank.status")
    if [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; then
        echo "rank $rank ended with $status:"
        cat "$output/$rank"
        [ "$result" -ne 0 ] || result=$status
    fi
    rank=$((rank + 1))
done
exit "$result"
