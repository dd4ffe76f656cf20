# Registers test programs with ctest. A source may say in its first lines how it wants to be run:
#
#     /* gsync-test: worlds=1,2,4 transports=threads,mpi timeout=60 */
#
#   worlds      how many ranks; each number is a test of its own                          (2)
#   transports  threads: `program --ranks N`; mpi: `mpirun -n N program`; single: `program`   (threads,mpi)
#   timeout     seconds                                                                   (60)
#   links       public: the shared library; internal: also what is hidden in it           (public)
#   wrap        functions that the program replaces, as ld's --wrap does; with malloc among them adds
#               tests/support/alloc_fault.c. Needs links=internal in a rank test          (none)
#   starts      ofast: as a program that is linked with -Ofast                            (none)
#   labels      further ctest labels                                                      (none)
#   memory      yes: run it under valgrind too; a rank test with 2 threads                (unit tests yes, others no)
#   device      once more with gradients on a GPU, tests/mirror: yes, long, or no, with the reason behind it
#                                                                                         (yes)
#   finish      host: there with gsync_finish alone, as what goes wrong is told by it     (any)
#
# A source that includes mpi.h or gradsync_mpi.h is left out where there is no MPI. One that includes simcuda.h gets the
# library over a simulated GPU; without CUDA's and NCCL's headers it is left out, like one that includes a *_cuda.h or
# cuda_*.h. Unit tests know timeout, wrap, labels and memory only.

function(gradsync_test_says source key default out)
    file(STRINGS ${source} lines LIMIT_INPUT 4096 REGEX "gsync-test:")
    set(value ${default})
    if(lines MATCHES "[ \t]${key}=([A-Za-z0-9_,.]+)")
        string(REPLACE "," ";" value "${CMAKE_MATCH_1}")
    endif()
    set(${out} "${value}" PARENT_SCOPE)
endfunction()

function(gradsync_test_needs_mpi source out)
    file(STRINGS ${source} lines REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"](gradsync/gradsync_mpi|mpi)\\.h")
    if(lines)
        set(${out} ON PARENT_SCOPE)
    else()
        set(${out} OFF PARENT_SCOPE)
    endif()
endfunction()

# Sets ${out} to the library that the source is linked with: `otherwise`, or the one over a simulated GPU; empty if this
# build has none of what it needs.
function(gradsync_test_library source otherwise out)
    file(STRINGS ${source} cuda REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]([a-z]+/)*([a-z_]+_cuda|cuda_[a-z_]+|simcuda|nccl)\\.h")
    file(STRINGS ${source} simulated REGEX "^[ \t]*#[ \t]*include[ \t]*\"simcuda\\.h")
    string(REPLACE gradsync gradsync_simcuda over_simulation ${otherwise})
    if(cuda AND NOT GRADSYNC_HAVE_CUDA)
        set(${out} "" PARENT_SCOPE)
    elseif(NOT simulated)
        set(${out} ${otherwise} PARENT_SCOPE)
    elseif(CMAKE_CXX_COMPILER)
        set(${out} ${over_simulation} PARENT_SCOPE)
    else()
        set(${out} "" PARENT_SCOPE)
    endif()
endfunction()

# Sets ${out} to the environment of a test that may take `timeout` seconds.
#
# mpirun ends its ranks a little earlier than ctest would end mpirun, since ranks that lost their mpirun could stay
# behind. Leaks are looked for in all tests but those under mpirun: Open MPI leaves some in modules that it has unloaded,
# which no suppression can name. Their code runs without mpirun too, with threads as ranks. Frames stay on the
# stack: those that AddressSanitizer moves elsewhere lose large alignments (llvm-project, pull request 152819).
function(gradsync_test_environment timeout detects_leaks out)
    math(EXPR mpirun_timeout "${timeout} - 3")
    set(${out}
        MPIEXEC_TIMEOUT=${mpirun_timeout}
        ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=0:detect_leaks=${detects_leaks}
        TSAN_OPTIONS=second_deadlock_stack=1
        UBSAN_OPTIONS=print_stacktrace=1
        PARENT_SCOPE)
endfunction()

function(gradsync_test_program target source)
    gradsync_test_says(${source} wrap "" wraps)
    add_executable(${target} ${source} ${ARGN})
    gradsync_configure_target(${target})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/programs)
    # CMake would link with nvcc whatever kernels get into, and simulated ones are C++.
    gradsync_test_library(${source} gradsync library)
    if(library STREQUAL "gradsync" AND source MATCHES "\\.c$")
        set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    else()
        set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
    endif()
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/tests/support)
    if("malloc" IN_LIST wraps)
        target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/alloc_fault.c)
    endif()
    foreach(symbol IN LISTS wraps)
        target_link_options(${target} PRIVATE LINKER:--wrap=${symbol})
    endforeach()
    gradsync_test_says(${source} starts "" starts)
    if(starts STREQUAL "ofast")
        target_link_options(${target} PRIVATE -Ofast) # which links the start-up code that flushes subnormals
    endif()
endfunction()

function(gradsync_test_properties test source processors)
    gradsync_test_says(${source} timeout 60 timeout)
    gradsync_test_says(${source} labels "" labels)
    list(FIND ARGN mpi mpi_index)
    if(mpi_index EQUAL -1)
        gradsync_test_environment(${timeout} 1 environment)
    else()
        gradsync_test_environment(${timeout} 0 environment)
    endif()
    set_tests_properties(${test} PROPERTIES
        TIMEOUT ${timeout} PROCESSORS ${processors} SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
    set_property(TEST ${test} APPEND PROPERTY LABELS ${labels} ${ARGN})
endfunction()

# tests/unit/<room>/test_<name>.c becomes unit.<room>.<name>; it may call what the library hides.
function(gradsync_unit_test room name)
    set(source ${PROJECT_SOURCE_DIR}/tests/unit/${room}/test_${name}.c)
    set(target unit.${room}.${name})
    gradsync_test_library(${source} gradsync_internal library)
    if(NOT library)
        message(STATUS "gradsync: ${target} is not built: it needs CUDA's and NCCL's headers and a C++ compiler")
        return()
    endif()
    gradsync_test_program(${target} ${source})
    target_link_libraries(${target} PRIVATE ${library} PkgConfig::CMOCKA)
    add_test(NAME ${target} COMMAND ${target})
    gradsync_test_properties(${target} ${source} 1 unit)
    gradsync_test_says(${source} memory yes memory)
    if(memory)
        set_property(GLOBAL APPEND PROPERTY GRADSYNC_MEMORY_UNIT_PROGRAMS ${target})
    endif()
endfunction()

# gradsync_rank_test(name source): a program whose ranks are threads or processes, tests/support/ranks.h. Becomes
# <name>.<transport>.<ranks>.
function(gradsync_rank_test name source)
    gradsync_test_needs_mpi(${source} needs_mpi)
    if(needs_mpi AND NOT GRADSYNC_HAVE_MPI)
        message(STATUS "gradsync: ${name} is not built: it needs MPI")
        return()
    endif()
    gradsync_test_says(${source} worlds 2 worlds)
    gradsync_test_says(${source} transports "threads;mpi" transports)
    gradsync_test_says(${source} links public links)

    gradsync_test_program(${name} ${source})
    if(links STREQUAL "internal")
        target_link_libraries(${name} PRIVATE gradsync_test_support_internal)
    else()
        target_link_libraries(${name} PRIVATE gradsync_test_support)
    endif()
    if(needs_mpi)
        target_link_libraries(${name} PRIVATE MPI::MPI_C)
    endif()

    set_property(GLOBAL APPEND PROPERTY GRADSYNC_RANK_PROGRAMS ${name})
    set_target_properties(${name} PROPERTIES GRADSYNC_SOURCE ${source})

    string(REGEX REPLACE "\\..*" "" label ${name})
    foreach(transport IN LISTS transports)
        if(transport STREQUAL "single")
            add_test(NAME ${name}.single COMMAND ${name})
            gradsync_test_properties(${name}.single ${source} 1 ${label} single)
        elseif(transport STREQUAL "threads")
            foreach(world IN LISTS worlds)
                add_test(NAME ${name}.threads.${world} COMMAND ${name} --ranks ${world})
                gradsync_test_properties(${name}.threads.${world} ${source} ${world} ${label} threads)
            endforeach()
        elseif(transport STREQUAL "mpi")
            if(GRADSYNC_HAVE_MPI)
                foreach(world IN LISTS worlds)
                    gradsync_mpirun(mpirun ${world})
                    add_test(NAME ${name}.mpi.${world} COMMAND ${mpirun} $<TARGET_FILE:${name}>)
                    set(wide "")
                    if(world GREATER 2)
                        set(wide wide) # left out under sanitizers, for their time
                    endif()
                    gradsync_test_properties(${name}.mpi.${world} ${source} ${world} ${label} mpi ${wide})
                endforeach()
            endif()
        else()
            message(FATAL_ERROR "${source}: gsync-test: there is no transport named \"${transport}\"")
        endif()
    endforeach()

    gradsync_test_says(${source} memory no memory)
    if(memory)
        set_property(GLOBAL APPEND PROPERTY GRADSYNC_MEMORY_RANK_PROGRAMS ${name})
    endif()
endfunction()

# gradsync_script_test(name COMMAND ...): anything else. Exit status 77 means skipped.
function(gradsync_script_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;PROCESSORS" "COMMAND;LABELS")
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    if(NOT arg_PROCESSORS)
        set(arg_PROCESSORS 1)
    endif()
    add_test(NAME ${name} COMMAND ${arg_COMMAND})
    gradsync_test_environment(${arg_TIMEOUT} 0 environment)
    set_tests_properties(${name} PROPERTIES
        TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS} SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
    set_property(TEST ${name} APPEND PROPERTY LABELS ${arg_LABELS})
endfunction()
