# What every target of this project is compiled with.

find_package(Threads REQUIRED)
find_library(GRADSYNC_LIBM m)
mark_as_advanced(GRADSYNC_LIBM)

set(gradsync_warnings
    -Wall -Wextra -Wpedantic -Wshadow -Wpointer-arith -Wwrite-strings -Wundef -Wvla
    "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>")

if(GRADSYNC_SANITIZE)
    set(gradsync_sanitize -fsanitize=${GRADSYNC_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
endif()

function(gradsync_configure_target target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF C_VISIBILITY_PRESET hidden
        CXX_STANDARD 11 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden)
    # Empty, so that a source which also says "#define _GNU_SOURCE" repeats it rather than redefines it. C++ has it.
    target_compile_definitions(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE=> GS_HAVE_MPI=$<BOOL:${GRADSYNC_HAVE_MPI}>
        GS_HAVE_CUDA=$<BOOL:${GRADSYNC_HAVE_CUDA}>)
    # Whether gcc thinks that a variable may be uninitialised depends on its version and on what it inlines: a warning.
    # Without contraction a*b+c is rounded twice on every machine, and ranks with different processors agree.
    target_compile_options(${target} PRIVATE
        ${gradsync_warnings} $<$<BOOL:${GRADSYNC_WERROR}>:-Werror>
        $<$<C_COMPILER_ID:GNU>:-Wno-error=maybe-uninitialized> -ffp-contract=off ${gradsync_sanitize})
    target_link_options(${target} PRIVATE ${gradsync_sanitize})
endfunction()
