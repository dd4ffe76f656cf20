# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of the benchmarks, which have set $work to a directory of their own.

fail() {
    echo "FAILED: $1"
    cat "$work/output" "$work/errors" 2>/dev/null || true
    exit 1
}

# expect STATUS COMMAND...: leaves what it says in $work/output; fails unless its exit status is STATUS.
expect() {
    expected=$1
    shift
    status=0
    "$@" >"$work/output" 2>&1 || status=$?
    [ "$status" -eq "$expected" ] || fail "exit status $status, not $expected: $*"
}

# The same, but what it says about errors is left in $work/errors.
expect_apart() {
    expected=$1
    shift
    status=0
    "$@" >"$work/output" 2>"$work/errors" || status=$?
    [ "$status" -eq "$expected" ] || fail "exit status $status, not $expected: $*"
}
