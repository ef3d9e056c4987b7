# cpp-httplib as Debian packages it (libcpp-httplib-dev): a header of declarations and a library, without a
# CMake package. Defines httplib::httplib. The definitions are those the library is compiled with (its .pc
# file has them too): they decide the layout of the header's classes.
include(FindPackageHandleStandardArgs)
find_path(httplib_INCLUDE_DIR httplib.h)
find_library(httplib_LIBRARY cpp-httplib)
mark_as_advanced(httplib_INCLUDE_DIR httplib_LIBRARY)
if(httplib_INCLUDE_DIR)
  file(STRINGS ${httplib_INCLUDE_DIR}/httplib.h httplib_VERSION REGEX "#define CPPHTTPLIB_VERSION \"")
  string(REGEX REPLACE ".*\"(.*)\".*" "\\1" httplib_VERSION "${httplib_VERSION}")
endif()
find_package_handle_standard_args(httplib REQUIRED_VARS httplib_LIBRARY httplib_INCLUDE_DIR
  VERSION_VAR httplib_VERSION HANDLE_VERSION_RANGE)
if(httplib_FOUND AND NOT TARGET httplib::httplib)
  add_library(httplib::httplib UNKNOWN IMPORTED)
  set_target_properties(httplib::httplib PROPERTIES
    IMPORTED_LOCATION ${httplib_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${httplib_INCLUDE_DIR}
    INTERFACE_COMPILE_DEFINITIONS
      "CPPHTTPLIB_OPENSSL_SUPPORT;CPPHTTPLIB_ZLIB_SUPPORT;CPPHTTPLIB_BROTLI_SUPPORT")
endif()
