#!/bin/sh
# Host tests with their gradients on a simulated GPU, in one schedule after the other.
#
#     schedules.sh PROGRAMS RESULTS [SEEDS [PATTERN [RANKS]]]
#
#   PROGRAMS  the folder of the test programs, build/test/tests/programs
#   RESULTS   a file that is added to: what it has already is not done again, so this may be stopped at any time
#   SEEDS     how many, from 1 on (1000)
#   PATTERN   of programs, as grep -E takes it (all of them)
#   RANKS     in words (1 2 4 8, of which each seed takes one)
#
# Prints what failed, with the command that repeats it. Ends with 1 if anything did.
set -u
if [ $# -lt 2 ]; then
    sed -n '2,12s/^# \{0,1\}//p' "$0"
    exit 2
fi
programs=$1
results=$2
seeds=${3:-1000}
pattern=${4:-.}
ranks=${5:-1 2 4 8}
touch "$results"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
trap 'exit 130' INT TERM

names=$(cd "$programs" && ls | grep '^device\.' | grep -E "$pattern")
if [ -z "$names" ]; then
    echo "no program in $programs matches" >&2
    exit 2
fi

world_of() { # seed
    # shellcheck disable=SC2086
    set -- $(($1 % $(echo $ranks | wc -w) + 1)) $ranks
    shift "$1"
    echo "$1"
}

seed=1
failures=0
while [ "$seed" -le "$seeds" ]; do
    world=$(world_of "$seed")
    for name in $names; do
        key="$name $world $seed"
        if grep -q "^$key " "$results"; then
            continue
        fi
        SIMCUDA_SEED=$seed SIMCUDA_STRICT=1 timeout 300 "$programs/$name" --ranks "$world" >"$output" 2>&1
        status=$?
        case $status in
        0 | 77) echo "$key $status" >>"$results" ;;
        *)
            failures=$((failures + 1))
            echo "FAILED ($status): SIMCUDA_SEED=$seed SIMCUDA_STRICT=1 $programs/$name --ranks $world"
            grep -vE '^\[ +(RUN|OK)|^\[=|skipped' "$output" | head -20
            ;;
        esac
    done
    seed=$((seed + 1))
done
echo "$(wc -l <"$results") runs are good, $failures failed now"
[ "$failures" -eq 0 ]
