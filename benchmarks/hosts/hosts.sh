#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Several hosts on one machine, for measuring what happens between them. --help says how to use it.
#
# A host is a network namespace, and its processes see a host name of their own. That is all that Open MPI and the
# library look at: ranks of different hosts share no memory then and speak TCP over the links, which are veth pairs
# whose both ends send through a token bucket. The machine's own network is not touched.
set -eu

usage='usage: hosts.sh [--name NAME] up RATE [HOSTS [LINK_RATE]]
       hosts.sh [--name NAME] run RANKS[,RANKS...] PROGRAM [ARGUMENT...]
       hosts.sh [--name NAME] down
       hosts.sh --help
Emulates hosts on one Linux machine. Needs root, ip and tc (iproute2), unshare (util-linux), and Open MPI to run
programs.

  up    Makes HOSTS hosts (2), each with one full-duplex link of RATE to the others: 1gbit, 200mbit, as tc has it, or
        "none" for no limit. With LINK_RATE, the path of the benchmark of that name, what the link really carries is
        measured.
  run   Runs PROGRAM under mpirun, RANKS ranks on each host: 2 is two on each, 3,1 is three on the first and one
        on the second. Ranks are numbered host by host. MPI is set up through the environment (OMPI_MCA_...).
        Exit status: that of mpirun. Nothing goes on running afterwards, whatever happened.
  down  Ends what runs on the hosts, and removes them.

  --name NAME  hosts are called NAME0, NAME1, ... (gsync-host): several sets may exist side by side'

script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
mpirun_settings=$(dirname "$script")/../../scripts/mpirun.sh

# Seen by the hosts of one set only, so that it cannot collide with anything.
network=10.77.0
device=eth0

fail() {
    echo "hosts.sh: $1" >&2
    exit 1
}

refuse() {
    printf 'hosts.sh: %s\n%s\n' "$1" "$usage" >&2
    exit 2
}

is_number() {
    case $1 in
    '' | *[!0-9]*) return 1 ;;
    esac
}

host_exists() {
    ip netns list | grep -q "^$1\( \|\$\)"
}

# Namespaces of this set, the switch included.
namespaces() {
    ip netns list | sed "s/ .*//" | grep "^$name\([0-9]\{1,\}\|-switch\)\$" || true
}

count_hosts() {
    namespaces | grep -vc -e '-switch$' || true
}

# on HOST COMMAND...: becomes COMMAND in the network of a host, under its name. HOST is a number.
on() {
    host=$name$1
    shift
    # shellcheck disable=SC2016 # for the inner shell
    exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host" "$@"
}

# ---- up and down ----

# Only a bucket that is small against a message limits messages, and only segments that are small against the bucket
# pass it evenly.
shape() { # NAMESPACE DEVICE
    ip -n "$1" link set "$2" gso_max_size 16384 up
    [ "$rate" = none ] || ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 64kb latency 20ms
}

set_up_host() { # NUMBER
    ip -n "$name$1" address add "$network.$(($1 + 1))/24" dev "$device"
    ip -n "$name$1" link set lo up
    shape "$name$1" "$device"
    # Some machines default to BBR, which paces each connection and falls short of a short link's rate.
    ip netns exec "$name$1" sh -c 'echo reno >/proc/sys/net/ipv4/tcp_congestion_control'
}

make_links() {
    if [ "$hosts" -eq 2 ]; then
        ip link add "$device" netns "${name}0" type veth peer name "$device" netns "${name}1"
        return
    fi
    ip netns add "$name-switch"
    ip -n "$name-switch" link add switch type bridge
    ip -n "$name-switch" link set switch up
    host=0
    while [ "$host" -lt "$hosts" ]; do
        ip link add "$device" netns "$name$host" type veth peer name "port$host" netns "$name-switch"
        ip -n "$name-switch" link set "port$host" master switch
        shape "$name-switch" "port$host"
        host=$((host + 1))
    done
}

up() {
    [ "$(count_hosts)" -eq 0 ] || fail "${name}0 exists already: hosts.sh down removes it"
    trap remove EXIT
    host=0
    while [ "$host" -lt "$hosts" ]; do
        ip netns add "$name$host"
        host=$((host + 1))
    done
    make_links
    number=0
    while [ "$number" -lt "$hosts" ]; do
        set_up_host "$number"
        number=$((number + 1))
    done
    echo "# $hosts hosts, ${name}0 to $name$((hosts - 1)), links of $rate"
    [ -z "$link_rate" ] || run 1 "$link_rate"
    trap - EXIT
}

processes() {
    for namespace in $(namespaces); do
        ip netns pids "$namespace"
    done
}

# What runs on the hosts was started by us. Gently first: mpirun then takes its ranks along.
end_processes() {
    for signal in TERM KILL; do
        tries=0
        while left=$(processes) && [ -n "$left" ] && [ "$tries" -lt 20 ]; do
            # shellcheck disable=SC2086 # a list of numbers, some of which may be gone
            [ "$tries" -gt 0 ] || kill -s "$signal" $left 2>/dev/null || true
            sleep 0.1
            tries=$((tries + 1))
        done
    done
}

remove() {
    end_processes
    for namespace in $(namespaces); do
        ip netns delete "$namespace"
    done
}

# ---- run ----

# Sets host_list and rank_count from RANKS[,RANKS...].
place_ranks() {
    hosts=$(count_hosts)
    [ "$hosts" -gt 0 ] || fail "there are no hosts named $name: hosts.sh up makes them"
    host_list=
    rank_count=0
    number=0
    left=$1,
    while [ "$number" -lt "$hosts" ]; do
        ranks=${left%%,*}
        is_number "$ranks" || refuse "\"$1\" is not a number of ranks for each of $hosts hosts"
        case $1 in
        *,*) left=${left#*,} ;;
        esac
        number=$((number + 1))
        [ "$ranks" -eq 0 ] || host_list=$host_list,$network.$number:$ranks
        rank_count=$((rank_count + ranks))
    done
    case $1 in
    *,*) [ -z "$left" ] || refuse "\"$1\" places ranks on more than $hosts hosts" ;;
    esac
    [ "$rank_count" -gt 0 ] || refuse "\"$1\" places no rank"
    host_list=${host_list#,}
}

# The daemons stay children of their agents, so that one who measures sees their CPU time, and nothing is left over.
run() {
    place_ranks "$1"
    shift
    # Afterwards everything on the hosts is ended, also what another run has started.
    [ -z "$(processes)" ] || fail "something else runs on ${name}0 and the others: wait, or use another --name"
    status=0
    on 0 env GSYNC_HOSTS_NAME="$name" OMPI_MCA_plm_rsh_agent="$script" \
        OMPI_MCA_oob_tcp_if_include="$network.0/24" OMPI_MCA_btl_tcp_if_include="$network.0/24" \
        OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp \
        sh "$mpirun_settings" mpirun --leave-session-attached --host "$host_list" -np "$rank_count" "$@" &
    mpirun=$!
    interrupted=
    trap 'interrupted=yes; kill "$mpirun" 2>/dev/null || true' INT TERM HUP
    wait "$mpirun" || status=$?
    # A signal ends that wait; mpirun then has its time to take its ranks along.
    [ -z "$interrupted" ] || wait "$mpirun" || status=$?
    trap - INT TERM HUP
    end_processes
    return "$status"
}

# Open MPI calls us in place of ssh: ADDRESS COMMAND... Becomes that command.
agent() {
    address=$1
    shift
    name=$GSYNC_HOSTS_NAME
    on $((${address##*.} - 1)) sh -c "$*"
}

# ---- the command line ----

case ${1:-} in
"$network".*)
    [ -n "${GSYNC_HOSTS_NAME:-}" ] || refuse "\"$1\" is no command"
    agent "$@"
    ;;
esac

name=gsync-host
if [ "${1:-}" = --name ]; then
    [ "$#" -ge 2 ] || refuse "--name needs a name"
    name=$2
    shift 2
fi
case $name in
'' | *[!a-z0-9-]* | *[0-9]) refuse "\"$name\" is no name of small letters, digits and dashes that ends in a letter" ;;
esac
[ "$#" -gt 0 ] || refuse "a command is missing"
command=$1
shift

case $command in
--help) echo "$usage" ;;
up)
    { [ "$#" -ge 1 ] && [ "$#" -le 3 ]; } || refuse "up takes RATE, HOSTS and LINK_RATE"
    rate=$1
    hosts=${2:-2}
    link_rate=${3:-}
    { is_number "$hosts" && [ "$hosts" -ge 2 ] && [ "$hosts" -le 64 ]; } || refuse "\"$hosts\" is not 2 to 64 hosts"
    up
    ;;
run)
    [ "$#" -ge 2 ] || refuse "run takes RANKS and a program"
    run "$@"
    ;;
down)
    [ "$#" -eq 0 ] || refuse "down takes nothing"
    remove
    ;;
*) refuse "\"$command\" is no command" ;;
esac
