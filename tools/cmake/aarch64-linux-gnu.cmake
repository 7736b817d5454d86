# Toolchain file: builds for 64-bit Arm with Debian's and Ubuntu's cross compiler and runs tests under qemu's user mode
# emulation. `-cpu max` has every instruction that a kernel family may ask for.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(MOEPACK_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR ${MOEPACK_EMULATOR} -cpu max)
