# install, export and package files: find_package(kvarena CONFIG) and pkg-config.

include(CMakePackageConfigHelpers)

get_target_property(kvarena_type kvarena TYPE)
set(KVARENA_IS_STATIC OFF)
if(kvarena_type STREQUAL "STATIC_LIBRARY")
  set(KVARENA_IS_STATIC ON)
endif()

# kvarena_install_library(target targets): a library with CMake targets of its own, so that who does not ask for
# a component needs none of its dependencies.
function(kvarena_install_library target targets)
  install(TARGETS ${target} EXPORT ${targets}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(EXPORT ${targets} NAMESPACE kvarena:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
endfunction()

# kvarena_install_pkg_config(name target description [REQUIRES text] [LIBS flag...]): NAME.pc. LIBS are what a
# static library hands to whoever links it; a shared one has its dependencies inside. They are libraries by name:
# `Requires: spdlog` would hand on compile flags that only kvarena's own sources need. The prefix is computed from
# the file's own folder, so an installed tree can be moved.
function(kvarena_install_pkg_config name target description)
  cmake_parse_arguments(PC "" "REQUIRES" "LIBS" ${ARGN})
  set(PC_NAME ${name})
  set(PC_DESCRIPTION ${description})
  set(PC_TARGET ${target})
  if(KVARENA_IS_STATIC)
    list(JOIN PC_LIBS " " PC_LIBS)
    string(PREPEND PC_LIBS " ")
  else()
    set(PC_LIBS "")
  endif()
  set(PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    string(REGEX REPLACE "/$" "" up ${up})
    set(PC_PREFIX "\${pcfiledir}/${up}")
  endif()
  foreach(dir LIBDIR INCLUDEDIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
      set(PC_${dir} "${CMAKE_INSTALL_${dir}}")
    else()
      set(PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
    endif()
  endforeach()
  configure_file(cmake/kvarena.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

install(DIRECTORY include/kvarena DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h"
  PATTERN health EXCLUDE PATTERN capacity EXCLUDE)
kvarena_install_library(kvarena kvarenaTargets)
set(cuda_libs "")
if(KVARENA_HAVE_CUDA)
  set(cuda_libs -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt)
endif()
kvarena_install_pkg_config(kvarena kvarena_cpp "${PROJECT_DESCRIPTION}" LIBS -lspdlog -lfmt ${cuda_libs} -pthread)
if(KVARENA_BUILD_HEALTH)
  install(DIRECTORY include/kvarena/health DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvarena)
  kvarena_install_library(kvarena_health kvarenaHealthTargets)
  install(FILES cmake/Findmicrohttpd.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
  kvarena_install_pkg_config(kvarena-health kvarena_health "kvarena's health monitor, metrics and HTTP"
    REQUIRES "kvarena = ${PROJECT_VERSION}" LIBS -lmicrohttpd -lspdlog -lfmt)
endif()
if(KVARENA_BUILD_CAPACITY)
  install(DIRECTORY include/kvarena/capacity DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvarena)
  kvarena_install_library(kvarena_capacity kvarenaCapacityTargets)
  kvarena_install_pkg_config(kvarena-capacity kvarena_capacity "kvarena's models, memory arithmetic and plans"
    REQUIRES "kvarena = ${PROJECT_VERSION}" LIBS -lfmt)
endif()
if(KVARENA_BUILD_C)
  # Its dependencies are inside, in a static build too.
  install(TARGETS kvarena_c EXPORT kvarenaCTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT kvarenaCTargets NAMESPACE kvarena:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
  kvarena_install_pkg_config(kvarena-c kvarena "kvarena's C interface: libkvarena.so")
endif()
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)

configure_package_config_file(cmake/kvarenaConfig.cmake.in kvarenaConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
# Before 1.0 a minor version may change the interface, so only the same minor version is compatible.
write_basic_package_version_file(kvarenaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvarenaConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/kvarenaConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)

if(TARGET kvarena_tool)
  install(TARGETS kvarena_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
