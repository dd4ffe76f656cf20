# cmake --install: the headers, the shared library, a CMake package and a pkg-config file. All relocatable.

include(CMakePackageConfigHelpers)

set(headers ${PROJECT_SOURCE_DIR}/include/gradsync/gradsync.h)
if(GRADSYNC_HAVE_MPI)
    list(APPEND headers ${PROJECT_SOURCE_DIR}/include/gradsync/gradsync_mpi.h)
endif()
if(GRADSYNC_HAVE_CUDA)
    list(APPEND headers ${PROJECT_SOURCE_DIR}/include/gradsync/gradsync_cuda.h)
endif()
install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradsync)

install(TARGETS gradsync EXPORT gradsync_targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gradsync)
install(EXPORT gradsync_targets FILE gradsync-targets.cmake NAMESPACE gradsync:: DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/gradsync-config.cmake.in
    ${PROJECT_BINARY_DIR}/gradsync-config.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a new minor version may break the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gradsync-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gradsync-config.cmake ${PROJECT_BINARY_DIR}/gradsync-config-version.cmake
    DESTINATION ${package_dir})

# pkg-config finds the prefix from where the file lies, so that an installed tree can be moved.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_LIBDIR libdir_is_absolute)
if(libdir_is_absolute)
    set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
    file(RELATIVE_PATH up /x/${pc_dir} /x)
    string(REGEX REPLACE "/$" "" up ${up})
    set(pc_prefix "\${pcfiledir}/${up}")
endif()
set(pc_includedir "\${prefix}")
cmake_path(APPEND pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
set(pc_libdir "\${prefix}")
cmake_path(APPEND pc_libdir ${CMAKE_INSTALL_LIBDIR})
configure_file(${PROJECT_SOURCE_DIR}/cmake/gradsync.pc.in ${PROJECT_BINARY_DIR}/gradsync.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gradsync.pc DESTINATION ${pc_dir})
