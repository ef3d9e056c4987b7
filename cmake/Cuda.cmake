# KVARENA_CUDA: AUTO turns the CUDA half on when a toolkit is found. Nothing here installs CUDA.
# KVARENA_HAVE_CUDA is the answer; the CPU build never needs it.

set(KVARENA_HAVE_CUDA OFF)
if(NOT KVARENA_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(KVARENA_HAVE_CUDA ON)
  elseif(KVARENA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KVARENA_CUDA=ON but no CUDA compiler was found. "
      "Install the CUDA toolkit and put nvcc on PATH, or configure with -DKVARENA_CUDA=OFF.")
  endif()
endif()
