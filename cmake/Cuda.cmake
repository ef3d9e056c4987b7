# KVARENA_CUDA: AUTO turns the CUDA half on when a toolkit is found. Nothing here installs CUDA.
# KVARENA_HAVE_CUDA is the answer; the CPU build never needs it. Rooms add their CUDA sources under
# if(KVARENA_HAVE_CUDA).
#
# KVARENA_CUDA_ARCHS: the architectures that kernels are compiled for. One for developers; ALL for a release.

set(KVARENA_CUDA_ARCHS 90a CACHE STRING "CUDA architectures, e.g. 90a or 80;90a; ALL: every supported one")
set(KVARENA_CUDA_ALL_ARCHS 80 90a 100)
# For compute-sanitizer's racecheck alone: slower, with the same results (kernels/common/hopper.cuh).
option(KVARENA_RACECHECK "Kernels synchronise in a way that racecheck can follow" OFF)
mark_as_advanced(KVARENA_RACECHECK)

# For machines without a GPU, where kernels are compiled and never run: device code in a quarter of the time, many
# times slower, and packed small, because every test program holds all kernels. Here nvcc says of kernels that they may
# be slow ("ptxas info").
option(KVARENA_CUDA_COMPILES_FAST "Compile kernels in a quarter of the time, for machines that never run them" OFF)
mark_as_advanced(KVARENA_CUDA_COMPILES_FAST)

set(KVARENA_HAVE_CUDA OFF)
if(NOT KVARENA_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(KVARENA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(KVARENA_NVCC)
    if(KVARENA_NVCC)
      set(ENV{CUDACXX} ${KVARENA_NVCC})
    endif()
  endif()
  # Machine code only: a binary for another architecture says so at once instead of compiling at its start.
  if(KVARENA_CUDA_ARCHS STREQUAL "ALL")
    set(CMAKE_CUDA_ARCHITECTURES ${KVARENA_CUDA_ALL_ARCHS})
  else()
    set(CMAKE_CUDA_ARCHITECTURES ${KVARENA_CUDA_ARCHS})
  endif()
  list(TRANSFORM CMAKE_CUDA_ARCHITECTURES APPEND -real)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit)
    # CMake 3.25 does not know that nvcc speaks C++20.
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  endif()
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cudart_static)
    set(KVARENA_HAVE_CUDA ON)
    set(KVARENA_CUDA_FAST_OPTIONS
      "$<$<VERSION_GREATER_EQUAL:${CMAKE_CUDA_COMPILER_VERSION},13>:-Ofc=max;-compress-mode=size>")
    if(KVARENA_CUDA_COMPILES_FAST)
      add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:${KVARENA_CUDA_FAST_OPTIONS}>")
    endif()
    message(STATUS "kvarena: CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
  elseif(KVARENA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KVARENA_CUDA=ON but no CUDA compiler with its static runtime was found. "
      "Install the CUDA toolkit and put nvcc on PATH, or configure with -DKVARENA_CUDA=OFF.")
  else()
    message(STATUS "kvarena: no CUDA toolkit found; building without the CUDA half")
  endif()
endif()
