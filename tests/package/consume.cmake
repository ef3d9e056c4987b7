# Installs kvarena (static: this build; shared: a build of its own) into an empty prefix, moves the
# prefix, and consumes it there: from a separate CMake project, and with the compiler and pkg-config.

cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR}/prefix ${WORK_DIR}/moved ${WORK_DIR}/consumer ${WORK_DIR}/consumer_c)
file(MAKE_DIRECTORY ${WORK_DIR})

if(KIND STREQUAL "shared")
  # Linked from this build's objects: packaging is tested, not the compiler.
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR}/library -G Ninja -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${CXX} -DBUILD_SHARED_LIBS=ON -DKVARENA_BUILD_EXAMPLES=OFF -DKVARENA_CUDA=${CUDA}
    -DKVARENA_RELINK_FROM=${BUILD_DIR})
  set(BUILD_DIR ${WORK_DIR}/library)
  run(${CMAKE_COMMAND} --build ${BUILD_DIR})
endif()
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix)

# Programs ask the loader for the version that they were linked with: 0.MINOR, from 1.0 on MAJOR.
if(KIND STREQUAL "shared")
  file(READ ${SOURCE_DIR}/include/kvarena/base/version.hpp version_header)
  string(REGEX MATCH "KVARENA_VERSION_STRING \"(0\\.[0-9]+|[0-9]+)" _ "${version_header}")
  foreach(name kvarena_cpp kvarena_health kvarena_capacity)
    file(GLOB_RECURSE found ${WORK_DIR}/prefix/lib${name}.so.${CMAKE_MATCH_1})
    if(NOT found)
      message(FATAL_ERROR "no lib${name}.so.${CMAKE_MATCH_1} is installed")
    endif()
  endforeach()
endif()

# find_package must work wherever the tree stands.
file(RENAME ${WORK_DIR}/prefix ${WORK_DIR}/moved)
set(prefix ${WORK_DIR}/moved)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK_DIR}/consumer -G Ninja
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix}
  -DEXPECTED_KIND=${KIND})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer)
run(${WORK_DIR}/consumer/consumer)
foreach(component health capacity)
  if(EXISTS ${WORK_DIR}/consumer/consumer_${component})
    run(${WORK_DIR}/consumer/consumer_${component})
  endif()
endforeach()

# In C, without a C++ compiler's flags.
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK_DIR}/consumer_c -G Ninja -DONLY_C=ON
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_C_COMPILER=${CC} -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer_c)
run(${WORK_DIR}/consumer_c/consumer_c)

find_program(pkg_config pkg-config)
if(NOT pkg_config)
  message(FATAL_ERROR "pkg-config is not installed (apt-get install pkg-config)")
endif()
file(GLOB_RECURSE pc ${prefix}/*/kvarena.pc)
get_filename_component(pc_dir ${pc} DIRECTORY)
get_filename_component(lib_dir ${pc_dir} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
foreach(pair kvarena:main.cpp kvarena-health:health.cpp kvarena-capacity:capacity.cpp kvarena-c:c.c)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 package)
  list(GET pair 1 program)
  if(NOT EXISTS ${pc_dir}/${package}.pc)
    continue()
  endif()
  foreach(question --cflags --libs)
    execute_process(COMMAND ${pkg_config} ${question} ${package}
      OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags${question} UNIX_COMMAND "${answer}")
  endforeach()
  # No define and no folder of somebody else's reaches the user's sources.
  foreach(flag IN LISTS flags--cflags)
    if(NOT flag MATCHES "^-I")
      message(FATAL_ERROR "pkg-config --cflags ${package} hands on ${flag}")
    endif()
    string(SUBSTRING ${flag} 2 -1 folder)
    get_filename_component(folder ${folder} REALPATH)
    if(NOT folder STREQUAL ${prefix}/include)
      message(FATAL_ERROR "pkg-config --cflags ${package} names ${folder}, expected ${prefix}/include")
    endif()
  endforeach()
  set(compiler ${CXX} -std=c++20)
  if(program STREQUAL "c.c")
    set(compiler ${CC} -std=c11)
  endif()
  run(${compiler} ${CMAKE_CURRENT_LIST_DIR}/consumer/${program} ${flags--cflags} ${flags--libs}
    -Wl,-rpath,${lib_dir} -o ${WORK_DIR}/with_pkg_config_${program})
  run(${WORK_DIR}/with_pkg_config_${program})
endforeach()
