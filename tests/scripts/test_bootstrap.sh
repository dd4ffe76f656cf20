#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/bootstrap.sh on machines that are pretended with stand-ins for apt-get, dpkg-query, id, sudo and cmake.
set -eu
bootstrap=$1/scripts/bootstrap.sh
bash=$(command -v bash)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# machine USER_ID INSTALLED: a directory of commands, where everything is installed or nothing is
machine() {
    rm -rf "$scratch/bin" "$scratch/calls"
    mkdir "$scratch/bin"
    : >"$scratch/calls"
    local tool
    for tool in dirname env mktemp chmod uname rm; do
        ln -s "$(command -v "$tool")" "$scratch/bin/$tool"
    done
    stand_in id "echo $1"
    stand_in dpkg-query "[ $2 = yes ] && printf installed"
    stand_in apt-get "echo apt-get \$* >>'$scratch/calls'"
    stand_in cmake "echo cmake \$* >>'$scratch/calls'"
}

stand_in() {
    printf '#!%s\n%s\n' "$bash" "$2" >"$scratch/bin/$1"
    chmod +x "$scratch/bin/$1"
}

run() {
    PATH=$scratch/bin "$bash" "$bootstrap" "$@" >"$scratch/output" 2>&1
}

claim() {
    local text=$1
    shift
    if ! "$@"; then
        echo "FAILED: $text"
        cat "$scratch/output" "$scratch/calls"
        failures=$((failures + 1))
    fi
}

fails() {
    ! "$@"
}

machine 1000 yes
claim "needs no root when nothing is missing" run demo
claim "calls the workflow" grep -qx "cmake --workflow --preset demo" "$scratch/calls"
claim "installs nothing that is there" fails grep -q apt-get "$scratch/calls"

machine 1000 no
claim "refuses without root and sudo" fails run demo
claim "says what to install" grep -q "apt-get install --no-install-recommends .*libopenmpi-dev" "$scratch/output"
claim "builds nothing after that" fails grep -q cmake "$scratch/calls"

machine 1000 no
stand_in sudo "echo sudo \$* >>'$scratch/calls'; \"\$@\""
claim "installs through sudo" run demo
claim "asks sudo for each call" grep -q "^sudo apt-get update" "$scratch/calls"
claim "installs without questions" grep -q "^apt-get install --yes --no-install-recommends build-essential" "$scratch/calls"

machine 0 no
claim "installs as root" run demo
claim "updates the lists first" grep -qx "apt-get update" "$scratch/calls"

machine 0 no
stand_in apt-get false
claim "stops when apt-get fails" fails run demo
claim "builds nothing then" fails grep -q cmake "$scratch/calls"

machine 0 yes
rm "$scratch/bin/apt-get"
claim "refuses where there is no apt-get" fails run demo
claim "names the workflow there" grep -q "cmake --workflow --preset demo" "$scratch/output"

machine 0 yes
stand_in cmake "exit 3"
claim "fails when the workflow fails" fails run demo

machine 0 yes
stand_in cmake "echo cmake \$* >>'$scratch/calls'; [ \$3 != clang ]"
stand_in cc "printf '#!%s\n' '$bash' >\$4; chmod +x \$4"
claim "fails when one of the presets does" fails run test
claim "names it" grep -qx "bootstrap: failed: cmake --workflow --preset clang" "$scratch/output"
claim "names no other" fails grep -q "failed:.*\(test\|asan\|tsan\)$" "$scratch/output"
claim "tries the others" grep -qx "cmake --workflow --preset tsan" "$scratch/calls"

claim "explains itself" run --help
claim "refuses unknown words" fails run everything
claim "shows the usage then" grep -q "^usage:" "$scratch/output"

[ "$failures" -eq 0 ]
