#!/bin/sh
# Installs the packages that building (and, with "tests", testing) moepack needs, on Debian 12 or Ubuntu 24.04; "cross":
# what building for 64-bit Arm and running it under emulation needs. Does nothing when all are there. Needs root or sudo
# only if something is missing.
set -eu

packages="gcc libc6-dev make cmake pkg-config libjansson-dev libxxhash-dev python3"
if [ "${1:-}" = tests ]; then packages="$packages libcmocka-dev python3-xxhash"; fi
if [ "${1:-}" = cross ]; then packages="cmake make libjansson-dev libxxhash-dev gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"; fi

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
if [ -z "$missing" ]; then exit 0; fi

echo "installing:$missing"
run=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: need root or sudo to install:$missing" >&2; exit 1; }
    run="sudo"
fi
command -v apt-get >/dev/null || { echo "setup: no apt-get here; please install:$missing" >&2; exit 1; }
$run apt-get update -qq
# shellcheck disable=SC2086 # word splitting is meant
$run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
