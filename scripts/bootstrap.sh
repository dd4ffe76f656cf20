#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One command from a fresh Debian 12 or Ubuntu 24.04 to a trained example or to passed tests.
set -eu
unset CDPATH
cd "$(dirname "$0")/.."

usage="usage: scripts/bootstrap.sh demo|test
  demo   installs what is missing, builds, and trains examples/02_char_gpt on 2 ranks
  test   installs what is missing, builds, and passes the tests: as they are, built by clang as well, under
         AddressSanitizer and UndefinedBehaviorSanitizer, and under ThreadSanitizer

Installing uses apt-get, as root or through sudo; when nothing is missing neither is needed. With the packages there
this is the same as cmake --workflow --preset demo, or test, clang, asan and tsan. Everything built goes to build/."

demo_packages="build-essential cmake ninja-build libopenmpi-dev openmpi-bin gnuplot-nox"
test_packages="$demo_packages pkg-config libcmocka-dev libgloo-dev iproute2 strace valgrind"
test_packages="$test_packages clang clang-format-14 clang-tidy-14 cppcheck"
test_packages="$test_packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"

is_installed() {
    [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_missing PACKAGE...
install_missing() {
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "bootstrap: this system has no apt-get. Install the equivalents of these Debian packages yourself, then run" >&2
        echo "bootstrap: cmake --workflow --preset $mode" >&2
        echo "  $*" >&2
        exit 1
    fi

    local package missing=()
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    if [ "${#missing[@]}" -eq 0 ]; then
        return
    fi

    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "bootstrap: packages are missing, and installing them needs root or sudo. Have somebody run" >&2
            echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
            exit 1
        fi
        as_root=(sudo)
    fi
    echo "bootstrap: installing ${missing[*]}"
    "${as_root[@]}" apt-get update
    if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "${missing[@]}"; then
        echo "bootstrap: apt-get could not install the packages. On Ubuntu the component \"universe\" has to be enabled:" >&2
        echo "bootstrap: add-apt-repository universe" >&2
        exit 1
    fi
}

# workflow_sanitized PRESET FLAG: some kernels spread addresses wider than the sanitizers of older compilers can bear;
# then the programs run without address randomisation, if that is permitted.
workflow_sanitized() {
    local probe status=0 launcher=()
    probe=$(mktemp -d)
    echo 'int main(void) { return 0; }' >"$probe/probe.c"
    cc "-fsanitize=$2" "$probe/probe.c" -o "$probe/probe"
    for _ in 1 2 3 4 5 6 7 8; do
        "$probe/probe" 2>/dev/null || launcher=(setarch "$(uname -m)" -R)
    done
    if [ "${#launcher[@]}" -ne 0 ] && ! "${launcher[@]}" "$probe/probe" 2>/dev/null; then
        rm -rf "$probe"
        echo "bootstrap: skipped: programs compiled with -fsanitize=$2 do not run on this machine"
        return
    fi
    rm -rf "$probe"
    "${launcher[@]}" cmake --workflow --preset "$1" || status=$?
    return "$status"
}

# note_failure PRESET: the other presets are still tried.
note_failure() {
    echo "bootstrap: failed: cmake --workflow --preset $1"
    status=1
}

mode=${1:-}
case $mode in
demo)
    # shellcheck disable=SC2086
    install_missing $demo_packages
    cmake --workflow --preset demo
    ;;
test)
    # shellcheck disable=SC2086
    install_missing $test_packages
    status=0
    cmake --workflow --preset test || note_failure test
    cmake --workflow --preset clang || note_failure clang
    workflow_sanitized asan address,undefined || note_failure asan
    workflow_sanitized tsan thread || note_failure tsan
    exit "$status"
    ;;
--help | -h)
    echo "$usage"
    ;;
*)
    echo "$usage" >&2
    exit 2
    ;;
esac
