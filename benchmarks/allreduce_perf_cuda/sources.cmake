# Also for the program that tests build of them.
file(GLOB allreduce_perf_cuda_sources CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_LIST_DIR}/*.c ${CMAKE_CURRENT_LIST_DIR}/../allreduce_perf/*.c)
list(FILTER allreduce_perf_cuda_sources EXCLUDE REGEX "/perf_(memory_host|program_host|peer_limit|peer_mpi|shard)\\.c$")
