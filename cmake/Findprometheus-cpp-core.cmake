# Finds the part of prometheus-cpp that writes metrics as text: prometheus-cpp-core_FOUND and the target
# prometheus-cpp::core. The project's own package file looks for an HTTP server and curl besides, which only
# its other parts need.

include(FindPackageHandleStandardArgs)
find_path(prometheus-cpp-core_INCLUDE_DIR prometheus/text_serializer.h)
# Debian: the name without a version belongs to the development package.
find_library(prometheus-cpp-core_LIBRARY NAMES prometheus-cpp-core libprometheus-cpp-core.so.1.0)
mark_as_advanced(prometheus-cpp-core_INCLUDE_DIR prometheus-cpp-core_LIBRARY)
find_package_handle_standard_args(prometheus-cpp-core
  REQUIRED_VARS prometheus-cpp-core_LIBRARY prometheus-cpp-core_INCLUDE_DIR)
if(prometheus-cpp-core_FOUND AND NOT TARGET prometheus-cpp::core)
  add_library(prometheus-cpp::core UNKNOWN IMPORTED)
  set_target_properties(prometheus-cpp::core PROPERTIES
    IMPORTED_LOCATION "${prometheus-cpp-core_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${prometheus-cpp-core_INCLUDE_DIR}")
endif()
