# toml++ (Debian's libtomlplusplus-dev), of which only the headers are used: what parses hostile input is then
# compiled with our own limits and sanitizers. Debian's own CMake package names its shared library.
include(FindPackageHandleStandardArgs)
find_path(tomlplusplus_INCLUDE_DIR toml++/toml.h)
mark_as_advanced(tomlplusplus_INCLUDE_DIR)
if(tomlplusplus_INCLUDE_DIR)
  file(STRINGS ${tomlplusplus_INCLUDE_DIR}/toml++/impl/version.h tomlplusplus_VERSION REGEX "TOML_LIB_M[AI][JN]OR +[0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" tomlplusplus_VERSION "${tomlplusplus_VERSION}")
  list(JOIN tomlplusplus_VERSION "." tomlplusplus_VERSION)
endif()
find_package_handle_standard_args(tomlplusplus REQUIRED_VARS tomlplusplus_INCLUDE_DIR
  VERSION_VAR tomlplusplus_VERSION
  REASON_FAILURE_MESSAGE "the kvarena command reads kvarena.toml with it: apt-get install libtomlplusplus-dev")
if(tomlplusplus_FOUND AND NOT TARGET tomlplusplus::tomlplusplus)
  add_library(tomlplusplus::tomlplusplus INTERFACE IMPORTED)
  set_target_properties(tomlplusplus::tomlplusplus PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES ${tomlplusplus_INCLUDE_DIR})
endif()
