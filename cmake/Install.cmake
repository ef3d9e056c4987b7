# install, export and package files: find_package(kvarena CONFIG) and pkg-config.

include(CMakePackageConfigHelpers)

get_target_property(kvarena_type kvarena TYPE)
set(KVARENA_IS_STATIC OFF)
if(kvarena_type STREQUAL "STATIC_LIBRARY")
  set(KVARENA_IS_STATIC ON)
endif()

install(TARGETS kvarena EXPORT kvarenaTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/kvarena DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT kvarenaTargets NAMESPACE kvarena::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
# The component `health` has targets of its own: who does not ask for it needs none of its dependencies.
if(KVARENA_BUILD_HEALTH)
  install(TARGETS kvarena_health EXPORT kvarenaHealthTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(EXPORT kvarenaHealthTargets NAMESPACE kvarena::
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
  install(FILES cmake/Findmicrohttpd.cmake cmake/Findprometheus-cpp-core.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
endif()
if(KVARENA_BUILD_CAPACITY)
  install(TARGETS kvarena_capacity EXPORT kvarenaCapacityTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(EXPORT kvarenaCapacityTargets NAMESPACE kvarena::
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
endif()
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)

configure_package_config_file(cmake/kvarenaConfig.cmake.in kvarenaConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)
# Before 1.0 a minor version may change the interface, so only the same minor version is compatible.
write_basic_package_version_file(kvarenaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvarenaConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/kvarenaConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvarena)

# A static library hands its own dependencies to whoever links it; a shared one has them inside.
set(KVARENA_PC_REQUIRES "")
set(KVARENA_PC_LIBS "")
if(KVARENA_IS_STATIC)
  set(KVARENA_PC_REQUIRES "spdlog")
  set(KVARENA_PC_LIBS " -pthread")
  if(KVARENA_HAVE_CUDA)
    string(APPEND KVARENA_PC_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
  endif()
endif()
# Prefix-relative when the install directory is, so that an installed tree can be moved.
foreach(dir LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(KVARENA_PC_${dir} "${CMAKE_INSTALL_${dir}}")
  else()
    set(KVARENA_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()
configure_file(cmake/kvarena.pc.in kvarena.pc.configured @ONLY)
# The prefix may be given only when installing (cmake --install --prefix), so it is filled in there.
install(CODE "
  file(READ \"${CMAKE_CURRENT_BINARY_DIR}/kvarena.pc.configured\" text)
  string(REPLACE \"%PREFIX%\" \"\${CMAKE_INSTALL_PREFIX}\" text \"\${text}\")
  file(WRITE \"${CMAKE_CURRENT_BINARY_DIR}/kvarena.pc\" \"\${text}\")")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvarena.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET kvarena_tool)
  install(TARGETS kvarena_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
