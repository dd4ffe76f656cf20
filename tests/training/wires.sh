#!/bin/sh
# Narrow wires in a trainer: 02_char_gpt on 2 ranks, a few steps with each.
#
#   - replicas are equal bit for bit after every step (--verify), and every wire trains otherwise than native does
#   - two hosts of one rank train like one host of two, bit for bit
#   - a run that was saved and resumed ends like one that was not, bit for bit, with feedback too
#   - a resumed run that does not find what it needs, and options that contradict each other, are refused
#
#   wires.sh PROGRAM MPIRUN...      MPIRUN... is followed by the number of ranks
set -eu

program=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

wrong() {
    echo "WRONG: $1"
    status=1
}

# train NAME OPTIONS LAUNCHER...: leaves the log NAME, which holds a hash of all parameters for each step.
train() {
    log=$work/$1 options=$2
    shift 2
    # shellcheck disable=SC2086 # words
    "$@" "$program" --layers 1 --width 128 --context 16 --global-batch 4 --steps 6 --optimizer sgd --quiet --verify \
        --log "$log" $options >"$work/output" 2>&1
}

must_train() {
    train "$@" || {
        cat "$work/output"
        echo "training failed: $1: $2"
        exit 1
    }
}

must_refuse() { # WORDS OPTIONS LAUNCHER...
    words=$1
    shift
    if train refused "$@"; then
        wrong "not refused: $1"
    elif ! grep -q -e "$words" "$work/output"; then
        cat "$work/output"
        wrong "refused without a word of \"$words\": $1"
    fi
}

hashes() { # NAME FIRST_STEP
    awk -F, -v first="$2" '$1 ~ /^[0-9]+$/ && $1 >= first { print $1, $2, $3, $4 }' "$work/$1"
}

must_be_equal() { # NAME NAME FIRST_STEP
    hashes "$1" "$3" >"$work/one"
    hashes "$2" "$3" >"$work/other"
    if [ "$(wc -l <"$work/one")" -eq $((7 - $3)) ] && cmp -s "$work/one" "$work/other"; then
        echo "equal bits from step $3 to 6: $1, $2"
    else
        wrong "$1 and $2 differ from step $3 on"
    fi
}

must_differ() { # NAME NAME
    [ "$(hashes "$1" 6)" != "$(hashes "$2" 6)" ] || wrong "$1 trains like $2"
}

must_train native "" "$@" 2
for wire in float16 bfloat16 int8 float8 topk; do
    must_train $wire "--wire $wire" "$@" 2
    must_differ $wire native
done
must_train stochastic "--wire int8 --stochastic" "$@" 2
must_differ stochastic int8
must_train feedback "--wire int8 --feedback on" "$@" 2
must_differ feedback int8
must_train topk_alone "--wire topk --feedback off" "$@" 2
must_differ topk_alone topk

must_train hosts_float16 "--wire float16 --ranks-per-host 1" "$@" 2
must_be_equal hosts_float16 float16 1
must_train hosts_feedback "--wire int8 --feedback on --ranks-per-host 1" "$@" 2
must_be_equal hosts_feedback feedback 1
must_train hosts_topk "--wire topk --ranks-per-host 1" "$@" 2
must_be_equal hosts_topk topk 1

for run in "float16:--wire float16" "feedback:--wire int8 --feedback on" "topk:--wire topk"; do
    name=${run%%:*}
    must_train first "${run#*:} --steps 3 --checkpoint $work/$name.ckpt" "$@" 2
    must_train "resumed_$name" "${run#*:} --resume $work/$name.ckpt" "$@" 2
    must_be_equal "resumed_$name" "$name" 4
done

resume="--resume $work/topk.ckpt"
must_refuse "another value of --wire" "$resume" "$@" 2
must_refuse "other gradients or wires" "$resume --wire topk --density 0.5" "$@" 2
must_refuse "have to be those that it was made with" "$resume --wire topk --feedback off" "$@" 2
cp "$work/topk.ckpt.rank0" "$work/topk.ckpt.rank1"
must_refuse "each rank loads its own" "$resume --wire topk" "$@" 2
rm "$work/topk.ckpt.rank1"
must_refuse "cannot open the checkpoint's part" "$resume --wire topk" "$@" 2
must_refuse "density is for --wire topk" "--density 0.5" env
must_refuse "stochastic is for --wire int8" "--wire float8 --stochastic" env
must_refuse "feedback on needs a --wire" "--feedback on" env
must_refuse "momentum is for --optimizer sgd" "--optimizer adamw --momentum 0.5" env
exit $status
