#!/bin/sh
# The same training whatever the ranks: 02_char_gpt for 40 steps at 1 x 8, 2 x 4, 4 x 2, 3 ranks (3 + 3 + 2) and
# 2 x 2 x 2 with accumulation, with AdamW and with SGD. Prints the largest differences from one rank and fails above
#
#   loss            2e-5, absolute
#   gradient norm   1e-6, relative
#
# --verify makes each run fail by itself when replicas differ in one bit after any step.
#
#   equality.sh PROGRAM MPIRUN...      MPIRUN... is followed by the number of ranks
set -eu

program=$1
shift
steps=40
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

train() { # optimizer name accumulate launcher...
    optimizer=$1 name=$2 accumulate=$3
    shift 3
    "$@" "$program" --steps $steps --optimizer "$optimizer" --global-batch 8 --accumulate "$accumulate" --quiet \
        --verify --log "$work/$optimizer.$name" >"$work/output" 2>&1 || {
        cat "$work/output"
        echo "training failed: $optimizer $name"
        exit 1
    }
}

# Compares "step,loss,gradient_norm,hash" lines with those of one rank.
compare() { # optimizer name
    awk -F, -v name="$1 $2" -v steps=$steps '
        function distance(a, b) { return a > b ? a - b : b - a }
        $1 !~ /^[0-9]+$/ { next }
        FNR == NR { loss[$1] = $2; norm[$1] = $3; next }
        {
            seen++
            d = distance(loss[$1], $2); if (d > worst_loss) worst_loss = d
            d = distance(norm[$1], $3) / norm[$1]; if (d > worst_norm) worst_norm = d
        }
        END {
            ok = seen == steps && worst_loss <= 2e-5 && worst_norm <= 1e-6
            printf "%-24s %d steps  max |loss difference| %.3g  max relative norm difference %.3g  %s\n",
                name, seen, worst_loss, worst_norm, ok ? "ok" : "WRONG"
            exit !ok
        }' "$work/$1.one" "$work/$1.$2" || status=1
}

for optimizer in adamw sgd; do
    train $optimizer one 1 env
    for run in 2x4:2:1 4x2:4:1 3+3+2:3:1 2x2x2:2:2; do
        name=${run%%:*}
        rest=${run#*:}
        train $optimizer "$name" "${rest#*:}" "$@" "${rest%%:*}"
        compare $optimizer "$name"
    done
done
exit $status
