#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What examples/04_bring_your_own_nccl promises, on the simulator.
#
#   test_own_nccl.sh CLAIM PROGRAM [MPIRUN...]     MPIRUN... already holds the number of ranks, 2; without it, ranks are
#                                                  started as torchrun does
set -eu

claim=$1
program=$2
shift 2
launcher=$*

. "$(dirname "$0")/ranks.sh"

case $claim in
learns)
    two 0 "$program" "$work/id"
    says '2 ranks'
    # Quickstart's numbers, which a rank alone gets as well.
    grep '^step' "$work/output" >"$work/of_two"
    [ "$(wc -l <"$work/of_two")" -eq 6 ] || fail "there are not six lines"
    says '^step 60  loss 0\.000000  weights 3\.0000 -2\.0000 0\.5000$'
    [ ! -e "$work/id" ] || fail "the file with the id is still there"
    alone 0 "$program"
    grep '^step' "$work/output" | cmp - "$work/of_two" || fail "one rank learns something else"
    for seed in $seeds; do
        SIMCUDA_SEED=$seed two 0 "$program" "$work/id"
    done
    ;;
missing_wait)
    launcher=
    SIMCUDA_SITES=$work/sites two 0 "$program" "$work/id"
    site=$(awk '$1 == "cudaStreamWaitEvent" && $2 ~ /gradsync/ { print $2 }' "$work/sites")
    [ -n "$site" ] || fail "the library waits nowhere"
    SIMCUDA_DROP_SITE=$site start_two "$program" "$work/id"
    case " $statuses " in *" 66 "*) ;; *) fail "exit statuses $statuses: nobody misses $site" ;; esac
    says 'simcuda: race on .*"line (gradient|step)"|WARNING: ThreadSanitizer: data race'
    ;;
refusals)
    alone 0 "$program" --help
    says 'ID_FILE'
    alone 2 "$program" one too_many
    WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 alone 1 "$program"
    says 'which file'
    WORLD_SIZE=2 RANK=0 alone 1 "$program" "$work/id"
    says 'LOCAL_RANK has to be set'
    : >"$work/id"
    WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 alone 1 "$program" "$work/id"
    says 'cannot leave .*exists'
    [ -e "$work/id" ] || fail "what was there before is gone"
    SIMCUDA_DEVICES=0 alone 1 "$program"
    says 'a GPU for this rank: CUDA says no device'
    rm "$work/id"
    SIMCUDA_DEVICES=1 two 1 "$program" "$work/id"
    says 'ncclCommInitRank: NCCL says'
    ;;
*)
    echo "no such claim: $claim" >&2
    exit 2
    ;;
esac
echo "own_nccl $claim: ok"
