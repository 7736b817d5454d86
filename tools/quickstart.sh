#!/bin/sh
# The main job from start to end on small files: make a checkpoint, convert, inspect, verify, plan, load one rank of eight and run
# the layer on it, run the whole layer against a golden, damage a copy and see it found. Needs no arguments; works in a temporary
# folder that is removed at the end (MOEPACK_KEEP=1 keeps it).
set -eu
cd "$(dirname "$0")/.."
root=$PWD

# SHA-256 of the result file that the whole layer must give, on every CPU (spec/numerics.md: one result for all kernels).
golden_hash=1bb2a15c143e1ca0ff3bfaba133d969a445ffe48c8088b427ab5aac873043c26

step() { printf '\n== %s\n' "$*"; }
run() {
    printf '$ %s\n' "$*"
    "$@"
}

step "packages and build"
sh tools/setup.sh
mkdir -p build
cmake -S . -B build/quickstart -DCMAKE_BUILD_TYPE=Release -DMOEPACK_TESTS=OFF >build/quickstart.log 2>&1 &&
    cmake --build build/quickstart -j "$(nproc)" >>build/quickstart.log 2>&1 || { cat build/quickstart.log; exit 1; }
mkdir -p build/bin
cp build/quickstart/bin/moepack build/bin/moepack
PATH=$root/build/bin:$PATH
echo "build/bin/moepack: $(moepack --version)"

work=$(mktemp -d "${TMPDIR:-/tmp}/moepack-quickstart.XXXXXX")
[ -n "${MOEPACK_KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
fixtures=$root/tests/fixtures
cd "$work"

step "a small Kimi K3 checkpoint with random weights, and an input of 4 tokens"
run moepack synth kimi_k3 k3 --seed 1 --input x.safetensors --tokens 4

step "convert it: every byte of the source goes into the container"
run moepack convert k3 k3.moepack

step "look at it, and check every byte of it without the source"
run moepack inspect k3.moepack
run moepack verify k3.moepack

step "plan for 8 ranks; load rank 3 and run layer 1 on its experts only (partial sums)"
run moepack plan k3.moepack --ranks 8
run moepack run k3.moepack --layer 1 --input x.safetensors --output rank3.safetensors --rank 3 --ranks 8

step "the whole layer: the same bits on every CPU"
run moepack run k3.moepack --layer 1 --input x.safetensors --output y.safetensors
hash=$(sha256sum <y.safetensors | cut -d' ' -f1)
echo "y.safetensors: $hash"
[ "$hash" = "$golden_hash" ] || { echo "expected $golden_hash" >&2; exit 1; }

step "a checkpoint packed by the official quantisation library, against float64 results of the reference arithmetic"
run moepack convert "$fixtures/k3_tiny/checkpoint" tiny.moepack --quiet
run moepack run tiny.moepack --layer 2 --input "$fixtures/k3_tiny/golden/layer_2.safetensors" --output tiny.safetensors --quiet
python3 "$root/tools/compare_golden.py" tiny.safetensors "$fixtures/k3_tiny/golden/layer_2.safetensors" 5e-3

step "export gives the source back, byte for byte"
run moepack export k3.moepack back
run diff -r k3 back
echo "identical"

step "damage one byte of one expert: verify names it"
cp -r k3.moepack damaged.moepack
moepack inspect k3.moepack --layer 2 --expert 5 --json >expert.json
file=$(python3 -c 'import json; e = json.load(open("expert.json")); print(e["shard"])')
offset=$(python3 -c 'import json; e = json.load(open("expert.json")); print(e["sections"][0]["offset"] + 77)')
printf '\252' | dd of="damaged.moepack/$file" bs=1 seek="$offset" conv=notrunc 2>/dev/null
code=0
run moepack verify damaged.moepack || code=$?
[ "$code" = 3 ] || { echo "verify returned $code instead of 3" >&2; exit 1; }

step "done: everything above worked"
