# Sets GRADSYNC_HAVE_CUDA, and where it is true finds CUDAToolkit and GRADSYNC_NCCL_INCLUDE_DIR and enables the language.
# NCCL itself is not looked for: the library finds it when it runs.

set(GRADSYNC_CUDA AUTO CACHE STRING "Gradients on GPUs: AUTO (when nvcc and the headers of NCCL are found), ON (required), OFF")
set_property(CACHE GRADSYNC_CUDA PROPERTY STRINGS AUTO ON OFF)

set(GRADSYNC_HAVE_CUDA OFF)
set(gradsync_cuda_lacks "")
if(GRADSYNC_CUDA STREQUAL "AUTO" AND CMAKE_CROSSCOMPILING)
    set(gradsync_cuda_lacks "toolkit for another machine unless it is asked for")
elseif(GRADSYNC_CUDA)
    find_package(CUDAToolkit QUIET)
    find_path(GRADSYNC_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    mark_as_advanced(GRADSYNC_NCCL_INCLUDE_DIR)
    if(NOT CUDAToolkit_FOUND)
        set(gradsync_cuda_lacks "CUDA toolkit (CUDAToolkit_ROOT=... says where it is)")
    elseif(NOT TARGET CUDA::cudart_static)
        set(gradsync_cuda_lacks "static runtime of CUDA, libcudart_static.a")
    elseif(NOT GRADSYNC_NCCL_INCLUDE_DIR)
        set(gradsync_cuda_lacks "nccl.h (GRADSYNC_NCCL_INCLUDE_DIR=... says where it is)")
    else()
        # For 8.0 and 9.0, and for what comes later as PTX, which the driver compiles. Nobody runs a sanitizer's build on
        # a GPU: one form will do.
        if(NOT CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPUs that kernels are compiled for")
            if(GRADSYNC_SANITIZE)
                set(CMAKE_CUDA_ARCHITECTURES 80-virtual)
            endif()
        endif()
        if(NOT DEFINED ENV{CUDACXX} AND NOT CMAKE_CUDA_COMPILER)
            set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})
        endif()
        include(CheckLanguage)
        check_language(CUDA)
        if(CMAKE_CUDA_COMPILER)
            enable_language(CUDA)
            set(GRADSYNC_HAVE_CUDA ON)
            # Targets name the runtime they link. What CMake would add to everything that kernels get into, libstdc++
            # among it, the library does not need.
            set(CMAKE_CUDA_RUNTIME_LIBRARY None)
            set(CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES "")
        else()
            set(gradsync_cuda_lacks "nvcc that works with this machine's C++ compiler")
        endif()
    endif()
    if(NOT GRADSYNC_HAVE_CUDA AND NOT GRADSYNC_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "GRADSYNC_CUDA is ON, but there is no ${gradsync_cuda_lacks}. Install it, or use "
                            "-DGRADSYNC_CUDA=OFF.")
    endif()
endif()
if(gradsync_cuda_lacks)
    message(STATUS "gradsync: CUDA: OFF: there is no ${gradsync_cuda_lacks}")
else()
    message(STATUS "gradsync: CUDA: ${GRADSYNC_HAVE_CUDA} (GRADSYNC_CUDA=${GRADSYNC_CUDA})")
endif()

# What compiles sources that include CUDA's and NCCL's headers.
function(gradsync_use_cuda_headers target)
    target_include_directories(${target} SYSTEM PRIVATE ${GRADSYNC_NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
endfunction()

# The kernels. Nothing is contracted and nothing flushed (nvcc's default), so that GPUs and hosts give the same bits.
# nvcc's own glue code is not clean under -Wpedantic and some others that the rest of the library is compiled with; it
# guards variables in functions that nobody calls here, which would need the C++ library.
function(gradsync_add_kernels target)
    add_library(${target} OBJECT ${ARGN})
    set_target_properties(${target} PROPERTIES
        CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF CUDA_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON)
    target_compile_options(${target} PRIVATE
        --fmad=false -Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
        "$<$<BOOL:${GRADSYNC_WERROR}>:--Werror=all-warnings;-Xcompiler=-Werror>")
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
endfunction()

# Kernels of examples and benchmarks, which do without the library's rules about bits. What is said about C++ lets a
# program of C hold them without the C++ library.
function(gradsync_add_program_kernels target)
    add_library(${target} OBJECT ${ARGN})
    set_target_properties(${target} PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF)
    target_compile_options(${target} PRIVATE
        -Xcompiler=-Wall,-Wextra,-Wshadow,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
        "$<$<BOOL:${GRADSYNC_WERROR}>:--Werror=all-warnings;-Xcompiler=-Werror>")
endfunction()
