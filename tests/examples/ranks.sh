# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of examples for GPUs, which run on the simulator: it ends a program with status 66 if anything it
# did was a race, or touched the wrong memory.

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SIMCUDA_STRICT=1
export SIMCUDA_STRICT

# Of schedules. mpirun takes its time, and mixes nothing up that torchrun's ranks do not.
seeds="1 2 3"
[ -z "$launcher" ] || seeds=1

fail() {
    echo "FAILED: $1"
    cat "$work"/output* 2>/dev/null || true
    exit 1
}

# alone STATUS PROGRAM...
alone() {
    expected=$1
    shift
    status=0
    "$@" >"$work/output" 2>&1 || status=$?
    [ "$status" -eq "$expected" ] || fail "exit status $status, not $expected: $*"
}

# As torchrun starts them, on one host. `statuses` are those of both.
start_two() {
    WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ % 50000))
    export WORLD_SIZE MASTER_ADDR MASTER_PORT
    rm -f "$work"/output*
    RANK=1 LOCAL_RANK=1 "$@" >"$work/output1" 2>&1 &
    one=$!
    status=0
    RANK=0 LOCAL_RANK=0 "$@" >"$work/output" 2>&1 || status=$?
    statuses=$status
    status=0
    wait "$one" || status=$?
    statuses="$statuses $status"
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
}

# two STATUS PROGRAM...: by mpirun where $launcher has one.
two() {
    wanted=$1
    shift
    if [ -n "$launcher" ]; then
        # shellcheck disable=SC2086 # a list of words
        alone "$wanted" $launcher "$@"
        return
    fi
    start_two "$@"
    [ "$statuses" = "$wanted $wanted" ] || fail "exit statuses $statuses, not $wanted: $*"
}

says() {
    cat "$work"/output* | grep -Eq -e "$1" || fail "it does not say \"$1\""
}
