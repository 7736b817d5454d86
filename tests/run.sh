#!/bin/sh
# Builds moepack with warnings as errors and runs every test: first an optimised build, then one under AddressSanitizer and
# UndefinedBehaviorSanitizer. "--long" adds the slow ones. The last lines are ctest's summary of each build.
set -eu
cd "$(dirname "$0")/.."

long=0
for argument in "$@"; do
    case "$argument" in
    --long) long=1 ;;
    *) echo "usage: sh tests/run.sh [--long]" >&2; exit 2 ;;
    esac
done
[ "$long" = 0 ] || export MOEPACK_TEST_LONG=1

sh tools/setup.sh tests
jobs=$(nproc)

run_build() { # name, build folder, cmake options
    name=$1 folder=$2
    shift 2
    echo "== $name: configure and build ($folder)"
    cmake -S . -B "$folder" "$@" >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
    cmake --build "$folder" -j "$jobs" >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
    rm -f "$folder.log"
    echo "== $name: tests"
    (cd "$folder" && ctest --output-on-failure -j "$jobs")
    # Results must be the same on machines with and without AVX-512: say what ran how.
    sed -n "s/^kernel families in this test:/== $name: kernel families:/p" "$folder/Testing/Temporary/LastTest.log" | sort -u
}

mkdir -p build
run_build release build/release -DCMAKE_BUILD_TYPE=Release
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
run_build sanitize build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOEPACK_SANITIZE=ON
