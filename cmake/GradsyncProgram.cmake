# Programs of this tree that use the public interface: examples and benchmarks.

# Adds one program. A source that includes mpi.h or gradsync_mpi.h makes it need MPI; without MPI it is left out. But a
# program of several sources does without those named *_mpi.c, and knows from GS_HAVE_MPI that they are missing.
function(gradsync_add_program name)
    set(sources ${ARGN})
    list(LENGTH sources source_count)
    if(source_count GREATER 1 AND NOT GRADSYNC_HAVE_MPI)
        list(FILTER sources EXCLUDE REGEX "_mpi\\.c$")
    endif()
    set(needs_mpi OFF)
    foreach(source IN LISTS sources)
        file(STRINGS ${source} mpi_includes REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"](gradsync/gradsync_mpi|mpi)\\.h")
        if(mpi_includes)
            set(needs_mpi ON)
        endif()
    endforeach()
    if(needs_mpi AND NOT GRADSYNC_HAVE_MPI)
        message(STATUS "gradsync: ${name} is not built: it needs MPI")
        return()
    endif()

    add_executable(${name} ${sources})
    gradsync_configure_target(${name})
    target_link_libraries(${name} PRIVATE
        $<IF:$<BOOL:${needs_mpi}>,gradsync::mpi,gradsync::gradsync> Threads::Threads
        $<$<BOOL:${GRADSYNC_LIBM}>:${GRADSYNC_LIBM}>)
endfunction()

# Adds every program of the current directory: name.c alone, or all sources of name/ unless that says itself how it is
# built.
function(gradsync_add_programs)
    file(GLOB singles CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.c)
    foreach(source IN LISTS singles)
        get_filename_component(name ${source} NAME_WE)
        gradsync_add_program(${name} ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    endforeach()
    file(GLOB parts CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} */*.c)
    set(names ${parts})
    list(TRANSFORM names REPLACE "/.*" "")
    list(REMOVE_DUPLICATES names)
    foreach(name IN LISTS names)
        if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/CMakeLists.txt)
            continue()
        endif()
        set(sources ${parts})
        list(FILTER sources INCLUDE REGEX "^${name}/")
        list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
        gradsync_add_program(${name} ${sources})
    endforeach()
endfunction()
