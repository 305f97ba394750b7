# Toolchain file for the vendor's Hexagon SDK (6.x). Not run here: it needs the SDK, which is not
# free to pass on. HEXAGON_SDK_ROOT and HEXAGON_TOOLS_ROOT are what its setup script sets.
#
#   cmake -S hexagon/dsp -B build -DCMAKE_TOOLCHAIN_FILE=../sdk.cmake -DDSP_VERSION=79
#   cmake --build build                                    -> build/libtandem-dsp-v79.so
# For its rules of shared libraries, which are those of the DSP's linker too.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR hexagon)

foreach(name HEXAGON_SDK_ROOT HEXAGON_TOOLS_ROOT)
  if(NOT DEFINED ENV{${name}})
    message(FATAL_ERROR "${name} is not set: source setup_sdk_env.source of the Hexagon SDK first")
  endif()
endforeach()

set(DSP_VERSION 79 CACHE STRING "Version of the DSP: 73, 75, 79 or 81")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DSP_VERSION)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_COMPILER $ENV{HEXAGON_TOOLS_ROOT}/Tools/bin/hexagon-clang)

set(machine "-mv${DSP_VERSION} -mhvx -mhvx-length=128B -mhvx-ieee-fp -mhmx -G0")
set(CMAKE_C_FLAGS_INIT "${machine}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${machine} -Wl,-Bsymbolic")

set(sdk $ENV{HEXAGON_SDK_ROOT})
include_directories(SYSTEM
  ${sdk}/incs
  ${sdk}/incs/stddef
  ${sdk}/ipc/fastrpc/incs
  ${sdk}/rtos/qurt/computev${DSP_VERSION}/include
  ${sdk}/rtos/qurt/computev${DSP_VERSION}/include/qurt
  ${sdk}/rtos/qurt/computev${DSP_VERSION}/include/posix)
