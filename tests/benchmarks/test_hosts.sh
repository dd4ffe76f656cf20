#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What benchmarks/hosts/hosts.sh claims: hosts between which the library uses messages, of which nothing stays behind.
#
#   test_hosts.sh SOURCE_DIR ALLREDUCE_PERF LINK_RATE
#
# Skipped (77) where namespaces or Open MPI are missing or not permitted.
set -eu

hosts=$1/benchmarks/hosts/hosts.sh
allreduce_perf=$2
link_rate=$3
# Another run of this test may go on at the same time.
name=t$$-host
work=$(mktemp -d)
export TMPDIR="$work/tmp" # where Open MPI leaves its files
mkdir "$TMPDIR"
trap 'status=$?; hosts down >/dev/null 2>&1 || true; rm -rf "$work"; exit "$status"' EXIT

hosts() {
    sh "$hosts" --name "$name" "$@"
}

skip() {
    echo "skipped: $1"
    exit 77
}

. "$(dirname "$0")/expect.sh"

# run STATUS ARGUMENT...: hosts.sh's output in $work/output; fails unless its exit status is STATUS.
run() {
    run_status=$1
    shift
    expect "$run_status" hosts "$@"
}

can_have_hosts() {
    ip netns add "$name-probe" || return 1
    ip -n "$name-probe" link add probe type veth peer name probe2 &&
        ip netns exec "$name-probe" tc qdisc add dev probe root tbf rate 1gbit burst 64kb latency 20ms &&
        ip netns exec "$name-probe" unshare --uts hostname probe
    can=$?
    ip netns delete "$name-probe"
    return "$can"
}

processes() {
    for host in 0 1 2; do
        ip netns pids "$name$host" 2>/dev/null || true
    done
}

nothing_runs() {
    [ -z "$(processes)" ] || fail "processes were left behind: $(processes)"
}

# layout RANKS HOSTS: every element is right, and the library sees that many hosts.
layout() {
    run 0 run "$1" "$allreduce_perf" -b 1K -e 256K -f 16 -n 2 -w 1
    grep -q " ranks on $2 hosts" "$work/output" || fail "the library does not see $2 hosts"
    grep -qx '# Out of bounds values : 0 OK' "$work/output" || fail "wrong values on $1"
    nothing_runs
}

run 0 --help
run 2 no_such_command
[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in ip tc unshare hostname mpirun; do
    command -v "$tool" >/dev/null || skip "there is no $tool"
done
mpirun --version 2>/dev/null | grep -q 'Open MPI' || skip "mpirun is not Open MPI's"
can_have_hosts >"$work/output" 2>&1 || skip "namespaces or their links are not permitted"

run 1 run 1 true # there are no hosts yet
run 0 up 200mbit 2 "$link_rate"
rate=$(sed -n 's/^# link_rate: one way \([0-9]*\).*/\1/p' "$work/output")
{ [ -n "$rate" ] && [ "$rate" -le 210 ]; } || fail "links of 200 Mbit/s carry \"$rate\""
run 1 up 200mbit
layout 1 2
layout 3,1 2
run 2 run 1,1,1 true
run 2 run 1, true
run 3 run 1 sh -c 'exit 3'
nothing_runs

# Ended from outside, it takes its ranks along.
sh "$hosts" --name "$name" run 1 sh -c 'echo started; exec sleep 60' >"$work/started" 2>&1 &
script=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ "$(grep -c started "$work/started")" -eq 2 ] && break
    sleep 0.2
done
run 1 run 1 true # one at a time
kill "$script"
wait "$script" && fail "an interrupted run has succeeded"
nothing_runs

run 0 down
run 0 up none 3
layout 1 3
run 0 down
! ip netns list | grep -q "^$name" || fail "hosts were left behind"
[ -z "$(find "$TMPDIR" ! -type d)" ] || fail "files were left behind: $(find "$TMPDIR" ! -type d)"
echo "hosts: ok"
