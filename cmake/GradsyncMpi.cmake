# Sets GRADSYNC_HAVE_MPI, and finds MPI::MPI_C and MPIEXEC_EXECUTABLE where it is true.

set(GRADSYNC_HAVE_MPI OFF)
if(GRADSYNC_MPI STREQUAL "AUTO")
    find_package(MPI COMPONENTS C)
    set(GRADSYNC_HAVE_MPI ${MPI_C_FOUND})
elseif(GRADSYNC_MPI)
    find_package(MPI COMPONENTS C)
    if(NOT MPI_C_FOUND)
        message(FATAL_ERROR "GRADSYNC_MPI is ON, but no MPI for C was found. Install one (Debian and Ubuntu: "
                            "libopenmpi-dev openmpi-bin), name it with -DMPI_HOME=..., or use -DGRADSYNC_MPI=OFF.")
    endif()
    set(GRADSYNC_HAVE_MPI ON)
endif()
message(STATUS "gradsync: MPI transport: ${GRADSYNC_HAVE_MPI} (GRADSYNC_MPI=${GRADSYNC_MPI})")

# The command line that runs a program on `ranks` processes; the program and its arguments follow it.
function(gradsync_mpirun out ranks)
    set(${out} ${PROJECT_SOURCE_DIR}/scripts/mpirun.sh ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} PARENT_SCOPE)
endfunction()
