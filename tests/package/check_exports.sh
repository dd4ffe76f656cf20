#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library shows exactly the functions that its headers declare, and its SONAME carries a version.
set -eu

if [ "$#" -lt 4 ]; then
    echo "usage: check_exports.sh NM READELF LIBRARY HEADER..." >&2
    exit 2
fi
nm=$1 readelf=$2 library=$3
shift 3

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$nm" -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | LC_ALL=C sort -u >"$scratch/shown"
# A declaration starts with GSYNC_API; the function is the last gsync_ word before the first parenthesis.
cat "$@" | sed -n 's/^GSYNC_API [^(]*[ *]\(gsync_[a-z0-9_]*\)(.*/\1/p' | LC_ALL=C sort -u >"$scratch/declared"

status=0
if ! grep -q . "$scratch/declared"; then
    echo "no declarations were found in $*"
    status=1
fi
for name in $(LC_ALL=C comm -23 "$scratch/shown" "$scratch/declared"); do
    echo "$name is visible, but no public header declares it"
    status=1
done
for name in $(LC_ALL=C comm -13 "$scratch/shown" "$scratch/declared"); do
    echo "$name is declared in a public header, but the library does not have it"
    status=1
done

soname=$("$readelf" -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
case $soname in
libgradsync.so.[0-9]*) ;;
*)
    echo "the SONAME is \"$soname\", without a version"
    status=1
    ;;
esac
exit $status
