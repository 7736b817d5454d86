#!/bin/sh
# The committed container must stay readable, and converting the same source must give the same bytes again. Until format
# 1.0 the container may be regenerated (with a line in CHANGELOG); from 1.0 on it stays. Arguments: moepack, this folder,
# and "--regenerate" to write the container anew.
set -eu
moepack=$1 folder=$2
golden=$folder/synth-0.1.moepack
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$moepack" synth kimi_k3 "$work/source" --seed 7 --hidden 48 --latent 32 --intermediate 32 --experts 5 --top-k 2 --layers 2 \
    --first-dense 0 --vocab 16 --shards 2 --quiet
"$moepack" convert "$work/source" "$work/new.moepack" --shard-size 65536 --quiet
if [ "${3:-}" = --regenerate ]; then
    rm -rf "$golden"
    cp -r "$work/new.moepack" "$golden"
fi

diff -r "$golden" "$work/new.moepack" || { echo "the converter writes other bytes than the golden container"; exit 1; }
"$moepack" verify "$golden"
"$moepack" export "$golden" "$work/exported" --quiet
diff -r "$work/source" "$work/exported" || { echo "export of the golden container is not its source"; exit 1; }
echo "$(find "$golden" -type f | wc -l) files as committed, and exported to the source's bytes"
