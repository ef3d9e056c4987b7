# libmicrohttpd as Debian packages it (libmicrohttpd-dev): a header and a library, without a CMake package.
# Defines microhttpd::microhttpd.
include(FindPackageHandleStandardArgs)
find_path(microhttpd_INCLUDE_DIR microhttpd.h)
find_library(microhttpd_LIBRARY microhttpd)
mark_as_advanced(microhttpd_INCLUDE_DIR microhttpd_LIBRARY)
if(microhttpd_INCLUDE_DIR)
  # 0x00097500 is 0.9.75.
  file(STRINGS ${microhttpd_INCLUDE_DIR}/microhttpd.h microhttpd_VERSION REGEX "#define MHD_VERSION 0x")
  string(REGEX REPLACE ".*0x(..)(..)(..).*" "\\1.\\2.\\3" microhttpd_VERSION "${microhttpd_VERSION}")
  string(REGEX REPLACE "0([0-9])" "\\1" microhttpd_VERSION "${microhttpd_VERSION}")
endif()
find_package_handle_standard_args(microhttpd REQUIRED_VARS microhttpd_LIBRARY microhttpd_INCLUDE_DIR
  VERSION_VAR microhttpd_VERSION)
if(microhttpd_FOUND AND NOT TARGET microhttpd::microhttpd)
  add_library(microhttpd::microhttpd UNKNOWN IMPORTED)
  set_target_properties(microhttpd::microhttpd PROPERTIES
    IMPORTED_LOCATION ${microhttpd_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${microhttpd_INCLUDE_DIR})
endif()
