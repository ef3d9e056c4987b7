# Settings that every target of the project shares.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_package(Threads REQUIRED)

# kvarena_options(target): language level, visibility, warnings, sanitizers.
function(kvarena_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wsign-conversion;-Wnon-virtual-dtor;-Wold-style-cast;-Wcast-align;-Woverloaded-virtual>
    # GCC 12 says that "text" + std::string may overlap itself (GCC bug 105651).
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
    $<$<AND:$<BOOL:${KVARENA_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
  kvarena_compiles_together(${target})
  if(KVARENA_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${KVARENA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${KVARENA_SANITIZE})
  endif()
endfunction()

# kvarena_compiles_together(target): with KVARENA_UNITY up to eight sources of the target are compiled as one,
# to read headers less often, without the two warnings that mean nothing then (kvarena_compiles_alone).
function(kvarena_compiles_together target)
  if(KVARENA_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# kvarena_compiles_fast(target): for code whose own speed matters to nobody; halves its compile time, most
# of all under sanitizers.
function(kvarena_compiles_fast target)
  if(KVARENA_SANITIZE)
    # A null pointer ends under AddressSanitizer all the same; these three are a quarter of the time.
    target_compile_options(${target} PRIVATE -O0 -fno-sanitize=null,alignment,vptr)
  else()
    target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
  endif()
endfunction()

# kvarena_compiles_alone(target source...): for a source with a local name that another source of its target
# has too (kvarena_compiles_together).
function(kvarena_compiles_alone target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# What most tests include first, compiled once for each of the two ways in which tests are compiled. All of
# them take it: a third of a test's compile time is GoogleTest, JSON and the containers.
set(KVARENA_TEST_HEADERS <gtest/gtest.h> <nlohmann/json.hpp> <array> <cstdint> <functional> <map> <memory> <random> <span> <sstream>
  <string> <string_view> <thread> <tuple> <vector>)
function(kvarena_test_headers target)
  if(NOT TARGET ${target})
    # Never linked. An executable all the same, since that is compiled as tests are.
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${target}.cpp CONTENT "")
    add_executable(${target} EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${target}.cpp)
    kvarena_test_options(${target} ${ARGN})
    target_precompile_headers(${target} PRIVATE ${KVARENA_TEST_HEADERS})
  endif()
endfunction()

# kvarena_test_options(target [FAST]): how a test is compiled.
function(kvarena_test_options target)
  kvarena_options(${target})
  # Tests count allocations by replacing operator new; an inlined delete then looks mismatched to GCC.
  target_compile_options(${target} PRIVATE -Wno-mismatched-new-delete)
  if("FAST" IN_LIST ARGN)
    kvarena_compiles_fast(${target})
  endif()
  target_link_libraries(${target} PRIVATE kvarena GTest::gtest_main Threads::Threads)
endfunction()

# kvarena_test(name SOURCES file... [OPTIMISED] [LABELS label...] [TIMEOUT seconds] [LIBRARIES lib...]): a GoogleTest
# program; ctest sees each test case, discovered when ctest runs. Programs with the label `threads` also
# hang on the target kvarena_thread_tests: what ThreadSanitizer is to see.
add_custom_target(kvarena_thread_tests)
function(kvarena_test name)
  cmake_parse_arguments(arg "OPTIMISED" "TIMEOUT" "SOURCES;LABELS;LIBRARIES" ${ARGN})
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_executable(${name} ${arg_SOURCES})
  # What is tested, or takes long, is optimised.
  if(arg_OPTIMISED OR "kernel" IN_LIST arg_LABELS OR "stress" IN_LIST arg_LABELS)
    kvarena_test_options(${name})
    kvarena_test_headers(kvarena_test_headers_optimised)
    target_precompile_headers(${name} REUSE_FROM kvarena_test_headers_optimised)
  else()
    kvarena_test_options(${name} FAST)
    kvarena_test_headers(kvarena_test_headers_fast FAST)
    target_precompile_headers(${name} REUSE_FROM kvarena_test_headers_fast)
  endif()
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/kernels
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(kvarena_thread_tests ${name})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  # Discovery cannot pass a list on, so a test has one label such as "unit+threads"; -L matches parts.
  list(JOIN arg_LABELS "+" label)
  # A card has one memory: what fills it or counts its free bytes runs alone.
  set(lock "")
  if("gpu" IN_LIST arg_LABELS AND EXISTS /dev/nvidiactl)
    set(lock RESOURCE_LOCK gpu)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 300
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${label}" ${lock})
endfunction()
