# For cmake --toolchain: AArch64 with the cross compiler of Debian and Ubuntu (gcc-aarch64-linux-gnu, with
# libc6-dev-arm64-cross). CMAKE_CROSSCOMPILING_EMULATOR runs what was built, where qemu-user-static is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(triple aarch64-linux-gnu)
set(CMAKE_C_COMPILER ${triple}-gcc)
set(CMAKE_CXX_COMPILER ${triple}-g++)

# Programs of this machine, but headers and libraries of the other one.
set(CMAKE_FIND_ROOT_PATH /usr/${triple})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(emulator qemu-aarch64-static)
mark_as_advanced(emulator)
if(emulator)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${emulator} -L /usr/${triple})
endif()
