# The instruction sets beyond the compiler's own for which src/base/kernels_*.c are compiled. -mfma never: with it a
# sum could be rounded once where the others round twice.

include(CheckCSourceCompiles)

# Sets ${out} if the compiler, given the further arguments, defines __x86_64__ and knows ${feature} at run time.
function(gradsync_check_isa out feature)
    string(REPLACE ";" " " CMAKE_REQUIRED_FLAGS "${ARGN}")
    check_c_source_compiles("
#if !defined(__x86_64__)
#error another machine
#endif
#include <immintrin.h>
int main(void) { return __builtin_cpu_supports(\"${feature}\"); }" ${out})
    set(${out} ${${out}} PARENT_SCOPE)
endfunction()

set(avx2 -mavx2)
set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
gradsync_check_isa(GRADSYNC_KERNELS_AVX2 avx2 ${avx2})
gradsync_check_isa(GRADSYNC_KERNELS_F16C f16c ${avx2} -mf16c)
gradsync_check_isa(GRADSYNC_KERNELS_AVX512 avx512f ${avx512})

# Some compilers know the instructions of F16C but cannot ask the machine for them: there AVX2 does without.
if(GRADSYNC_KERNELS_F16C)
    list(APPEND avx2 -mf16c)
endif()
foreach(isa AVX2 AVX512)
    if(GRADSYNC_KERNELS_${isa})
        string(TOLOWER ${isa} flags)
        set_source_files_properties(base/kernels_${flags}.c PROPERTIES COMPILE_OPTIONS "${${flags}}")
    endif()
endforeach()
set_source_files_properties(base/kernels.c PROPERTIES COMPILE_DEFINITIONS
    "GS_KERNELS_AVX2=$<BOOL:${GRADSYNC_KERNELS_AVX2}>;GS_KERNELS_F16C=$<BOOL:${GRADSYNC_KERNELS_F16C}>;GS_KERNELS_AVX512=$<BOOL:${GRADSYNC_KERNELS_AVX512}>")
