# Installation: library, public headers (flat under moepack/), CLI, CMake package and pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# A static library passes its own dependencies on to whoever links it; a shared one hides them.
install(TARGETS moepack EXPORT moepackTargets
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES format/moepack/format.h convert/moepack/convert.h runtime/moepack/runtime.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/moepack)
install(EXPORT moepackTargets NAMESPACE moepack:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moepack)
configure_package_config_file(tools/cmake/moepackConfig.cmake.in ${PROJECT_BINARY_DIR}/moepackConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moepack)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/moepackConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/moepackConfig.cmake ${PROJECT_BINARY_DIR}/moepackConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/moepack)

# pkg-config: the prefix is relative to the file, so that an installed tree can be moved.
file(RELATIVE_PATH moepack_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" moepack_pc_prefix "${moepack_pc_prefix}")
if(BUILD_SHARED_LIBS)
  set(moepack_pc_requires Requires.private)
  set(moepack_pc_libs "")
else()
  set(moepack_pc_requires Requires)
  set(moepack_pc_libs "-fopenmp -lpthread -lm")
endif()
configure_file(tools/cmake/moepack.pc.in ${PROJECT_BINARY_DIR}/moepack.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/moepack.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
