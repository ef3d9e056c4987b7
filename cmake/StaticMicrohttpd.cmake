# libmicrohttpd inside libkvarena.so: the target kvarena_static_microhttpd.
#
# Debian's archive is compiled for programs and with TLS, which kvarena does not use. Two things stand in the way of
# a shared library: the address of `stderr`, which such code may take only in a program, and GnuTLS. So `stderr` gets
# another name that is defined here, and each function of GnuTLS that the archive names is defined as one that fails.
# Where there is no such archive, the shared library is linked: libkvarena.so then needs it, and a line says so.

include(FindPackageHandleStandardArgs)
find_library(KVARENA_MICROHTTPD_ARCHIVE libmicrohttpd.a)
mark_as_advanced(KVARENA_MICROHTTPD_ARCHIVE)
add_library(kvarena_static_microhttpd INTERFACE)

if(NOT KVARENA_MICROHTTPD_ARCHIVE OR NOT CMAKE_OBJCOPY OR NOT CMAKE_NM)
  message(WARNING "kvarena: libkvarena.so will need libmicrohttpd.so: there is no libmicrohttpd.a "
    "(libmicrohttpd-dev), or no objcopy and nm (binutils).")
  find_package(microhttpd MODULE REQUIRED)
  target_link_libraries(kvarena_static_microhttpd INTERFACE microhttpd::microhttpd)
  return()
endif()

set(folder ${PROJECT_BINARY_DIR}/microhttpd)
file(MAKE_DIRECTORY ${folder})
execute_process(COMMAND ${CMAKE_OBJCOPY} --redefine-sym stderr=http_error_stream ${KVARENA_MICROHTTPD_ARCHIVE}
  ${folder}/libhttp.a COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_NM} -u ${KVARENA_MICROHTTPD_ARCHIVE} OUTPUT_VARIABLE undefined ERROR_QUIET
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "gnutls_[a-z0-9_]+" names "${undefined}")
list(REMOVE_DUPLICATES names)
list(SORT names)
list(REMOVE_ITEM names gnutls_global_init gnutls_global_deinit)  # called whenever the library is loaded
set(stubs "")
foreach(name IN LISTS names)
  string(APPEND stubs "int ${name}() { return -1; }\n")
endforeach()
file(CONFIGURE OUTPUT ${folder}/without_tls.cpp @ONLY CONTENT [[// Made by cmake/StaticMicrohttpd.cmake.
#include <cstdio>
extern "C" {
#pragma GCC visibility push(hidden)
FILE* http_error_stream;
__attribute__((constructor)) static void set_error_stream() { http_error_stream = stderr; }
int gnutls_global_init() { return 0; }
void gnutls_global_deinit() {}
@stubs@#pragma GCC visibility pop
}
]])
# Alone, so that a build that links the objects of another one (KVARENA_RELINK_FROM) can leave it out.
set_source_files_properties(${folder}/without_tls.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_sources(kvarena_static_microhttpd INTERFACE ${folder}/without_tls.cpp)
target_link_libraries(kvarena_static_microhttpd INTERFACE ${folder}/libhttp.a)
