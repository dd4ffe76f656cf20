# Sets GRADSYNC_HAVE_GLOO, and where it is true makes the target gradsync_gloo and enables C++. Gloo is something that
# benchmarks compare with; the library does not use it.

set(GRADSYNC_GLOO AUTO CACHE STRING "Gloo as a peer in benchmarks: AUTO (when it is found), ON (required), OFF")
set_property(CACHE GRADSYNC_GLOO PROPERTY STRINGS AUTO ON OFF)

# It was not compiled for a sanitizer, which would report it.
set(GRADSYNC_HAVE_GLOO OFF)
if(GRADSYNC_GLOO STREQUAL "AUTO" AND GRADSYNC_SANITIZE)
    set(gloo_is_wanted OFF)
else()
    set(gloo_is_wanted ${GRADSYNC_GLOO})
endif()

if(gloo_is_wanted)
    include(CheckLanguage)
    check_language(CXX)
    find_path(GRADSYNC_GLOO_INCLUDE_DIR gloo/rendezvous/context.h)
    find_library(GRADSYNC_GLOO_LIBRARY gloo)
    mark_as_advanced(GRADSYNC_GLOO_INCLUDE_DIR GRADSYNC_GLOO_LIBRARY)
    if(CMAKE_CXX_COMPILER AND GRADSYNC_GLOO_INCLUDE_DIR AND GRADSYNC_GLOO_LIBRARY)
        set(GRADSYNC_HAVE_GLOO ON)
        enable_language(CXX)
        add_library(gradsync_gloo INTERFACE)
        target_include_directories(gradsync_gloo SYSTEM INTERFACE ${GRADSYNC_GLOO_INCLUDE_DIR})
        target_link_libraries(gradsync_gloo INTERFACE ${GRADSYNC_GLOO_LIBRARY} Threads::Threads)
    elseif(NOT gloo_is_wanted STREQUAL "AUTO")
        message(FATAL_ERROR "GRADSYNC_GLOO is ON, but there is no gloo, or no C++ compiler. Install it (Debian and "
                            "Ubuntu: libgloo-dev), or use -DGRADSYNC_GLOO=OFF.")
    endif()
endif()
message(STATUS "gradsync: gloo in benchmarks: ${GRADSYNC_HAVE_GLOO} (GRADSYNC_GLOO=${GRADSYNC_GLOO})")
