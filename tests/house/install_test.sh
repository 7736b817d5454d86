#!/bin/sh
# Installs the build into a fresh prefix, then compiles and runs the README's C example twice: through
# find_package(moepack) and through pkg-config. Arguments: source folder, build folder, C compiler.
set -eu
source=$1 build=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build" --prefix "$prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

# The example is the README's first block marked "```c".
awk '/^```c$/ && !seen { on = 1; seen = 1; next } /^```$/ { on = 0 } on' "$source/README.md" >"$work/example.c"
[ -s "$work/example.c" ] || { echo "README.md has no C example"; exit 1; }

"$prefix/bin/moepack" convert "$source/tests/fixtures/k3_tiny/checkpoint" "$work/k3.moepack" --quiet

mkdir "$work/package"
cat >"$work/package/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.20)
project(example C)
find_package(moepack REQUIRED)
add_executable(example ../example.c)
target_link_libraries(example PRIVATE moepack::moepack)
CMAKE
cmake -S "$work/package" -B "$work/package/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$compiler" \
    >"$work/log" 2>&1 && cmake --build "$work/package/build" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/package/build/example" "$work/k3.moepack" >"$work/out1"

pc=$(dirname "$(find "$prefix" -name moepack.pc)")
flags=$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs moepack)
# shellcheck disable=SC2086 # word splitting is meant
"$compiler" -std=c11 -Wall -Werror "$work/example.c" -o "$work/example" $flags
LD_LIBRARY_PATH="$prefix/lib" "$work/example" "$work/k3.moepack" >"$work/out2"

cat "$work/out1"
cmp "$work/out1" "$work/out2"
grep -q . "$work/out1"
