# find_package(kvarena COMPONENTS ...) with what is installed: a component that does not exist, or was not built,
# is named with those that are there.

cmake_minimum_required(VERSION 3.25)

if(COMPONENTS)  # the consumer, in a process of its own
  find_package(kvarena CONFIG REQUIRED COMPONENTS ${COMPONENTS} PATHS ${WORK_DIR} NO_DEFAULT_PATH)
  return()
endif()

include(CMakePackageConfigHelpers)
file(REMOVE_RECURSE ${WORK_DIR})
set(KVARENA_IS_STATIC OFF)
set(KVARENA_HAVE_CUDA OFF)
set(CMAKE_INSTALL_PREFIX ${WORK_DIR})
configure_package_config_file(${SOURCE_DIR}/cmake/kvarenaConfig.cmake.in ${WORK_DIR}/kvarenaConfig.cmake
  INSTALL_DESTINATION .)
foreach(targets kvarena kvarenaHealth)
  file(WRITE ${WORK_DIR}/${targets}Targets.cmake "")
endforeach()

function(expect components words)
  execute_process(COMMAND ${CMAKE_COMMAND} "-DCOMPONENTS=${components}" -DWORK_DIR=${WORK_DIR}
    -P ${CMAKE_CURRENT_LIST_FILE} RESULT_VARIABLE result ERROR_VARIABLE messages)
  string(REGEX REPLACE "[ \n]+" " " messages "${messages}")
  string(FIND "${messages}" "${words}" at)
  if(at EQUAL -1 OR (result EQUAL 0 AND words))
    message(FATAL_ERROR "${components}: expected \"${words}\", got ${result}: ${messages}")
  endif()
endfunction()

expect("health" "")
expect("helth" "no component \"helth\"; there are health, capacity, c")
expect("health;helth" "no component \"helth\"; there are health, capacity, c")
expect("capacity" "built without its component \"capacity\" (KVARENA_BUILD_CAPACITY=OFF)")
expect("c" "built without its component \"c\" (KVARENA_BUILD_C=OFF)")
