#!/bin/sh
# Builds moepack with warnings as errors and runs every test: first an optimised build, then one under AddressSanitizer and
# UndefinedBehaviorSanitizer; then what uses threads under ThreadSanitizer; last, for
# 64-bit Arm with a cross compiler, where the numeric and format tests run under emulation. "--long" adds the slow ones. The last lines are ctest's summary of each build.
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

run_build() { # name, build folder, cmake options; TARGET and LABEL: not everything
    name=$1 folder=$2
    shift 2
    echo "== $name: configure and build ($folder)"
    cmake -S . -B "$folder" "$@" >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
    cmake --build "$folder" ${TARGET:+--target "$TARGET"} -j "$jobs" >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
    rm -f "$folder.log"
    echo "== $name: tests"
    (cd "$folder" && ${FIXED:-} ctest ${LABEL:+-L "$LABEL"} --output-on-failure -j "$jobs")
    # Results must be the same on machines with and without AVX-512: say what ran how.
    sed -n "s/^kernel families in this test:/== $name: kernel families:/p" "$folder/Testing/Temporary/LastTest.log" | sort -u
}

mkdir -p build
run_build release build/release -DCMAKE_BUILD_TYPE=Release
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
run_build sanitize build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOEPACK_SANITIZE=ON

# Scheduler and loader under ThreadSanitizer. It cannot map its memory where the kernel randomises addresses too far.
FIXED="setarch -R"
$FIXED true 2>/dev/null || FIXED=""
if echo 'int main(void) { return 0; }' | ${CC:-cc} -fsanitize=thread -x c -o build/tsan-works - 2>/dev/null && $FIXED build/tsan-works; then
    export TSAN_OPTIONS=halt_on_error=1
    TARGET=threads_tests LABEL=threads
    run_build threads build/threads -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOEPACK_TSAN=ON
else
    echo "== threads: SKIPPED, this compiler or machine has no ThreadSanitizer (package libtsan)"
fi

# 64-bit Arm: everything compiles, and the tests that need none of the target's libraries run. Threads that wait must not
# be emulated spinning. An Arm machine has run all of this natively above.
if [ "$(uname -m)" = aarch64 ]; then
    echo "== cross: not needed, this machine is 64-bit Arm"
elif why=$(sh tools/setup.sh cross 2>&1); then
    FIXED="" TARGET=cross_tests LABEL=cross
    unset ASAN_OPTIONS UBSAN_OPTIONS
    run_build cross build/cross -DCMAKE_BUILD_TYPE=Release -DMOEPACK_CROSS=ON \
        -DCMAKE_TOOLCHAIN_FILE="$PWD/tools/cmake/aarch64-linux-gnu.cmake"
else
    echo "== cross: SKIPPED, NO TEST OF THE NEON KERNELS RAN: $why"
fi
