# Stands in for the packages of the target when cross compiling (MOEPACK_CROSS): cross compilers come with libc and
# libgomp, not with these libraries.
#   xxhash   the real one, compiled for the target from this machine's header, which holds the whole library
#   cmocka   tests/cross/cmocka.h, the part of it that the tests use
#   jansson  this machine's header and nothing to link with: programs link with the symbols left open, and what calls it
#            cannot run. Tests that need it do not carry the label "cross".
find_path(MOEPACK_XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(MOEPACK_JANSSON_INCLUDE jansson.h REQUIRED)
set(standins ${PROJECT_BINARY_DIR}/standins)
file(COPY ${MOEPACK_XXHASH_INCLUDE}/xxhash.h DESTINATION ${standins}) # /usr/include itself is the wrong libc's
file(GLOB jansson_headers ${MOEPACK_JANSSON_INCLUDE}/jansson*.h)
file(COPY ${jansson_headers} DESTINATION ${standins})

add_library(moepack_standins STATIC ${CMAKE_CURRENT_LIST_DIR}/xxhash.c ${CMAKE_CURRENT_LIST_DIR}/cmocka.c)
target_include_directories(moepack_standins SYSTEM PRIVATE ${standins})
target_include_directories(moepack_standins PRIVATE ${CMAKE_CURRENT_LIST_DIR})

foreach(package JANSSON XXHASH CMOCKA)
  add_library(PkgConfig::${package} INTERFACE IMPORTED)
  target_include_directories(PkgConfig::${package} INTERFACE ${standins})
endforeach()
target_link_libraries(PkgConfig::XXHASH INTERFACE moepack_standins)
target_link_libraries(PkgConfig::CMOCKA INTERFACE moepack_standins)
target_include_directories(PkgConfig::CMOCKA INTERFACE ${CMAKE_CURRENT_LIST_DIR})
target_link_options(PkgConfig::JANSSON INTERFACE -Wl,--unresolved-symbols=ignore-all -Wl,-z,lazy)
