# KVARENA_RELINK_FROM=FOLDER: a shared build that compiles nothing of the libraries. They are linked from the
# static ones of another build of the same sources, whose objects are position-independent and hide the same
# symbols. The tests of the package use it: a second compilation would tell them nothing.
if(NOT BUILD_SHARED_LIBS)
  message(FATAL_ERROR "KVARENA_RELINK_FROM makes shared libraries of static ones: set BUILD_SHARED_LIBS=ON too.")
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/nothing.cpp CONTENT "")
foreach(pair kvarena:src/libkvarena_cpp kvarena_health:src/health/libkvarena_health
    kvarena_capacity:src/capacity/libkvarena_capacity)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 library)
  list(GET pair 1 file)
  if(TARGET ${library})
    set(archive ${KVARENA_RELINK_FROM}/${file}.a)
    if(NOT EXISTS ${archive})
      message(FATAL_ERROR "KVARENA_RELINK_FROM: there is no ${archive}. Give the folder of a static build.")
    endif()
    set_property(TARGET ${library} PROPERTY SOURCES ${PROJECT_BINARY_DIR}/nothing.cpp)
    set_property(TARGET ${library} APPEND PROPERTY LINK_DEPENDS ${archive})
    target_link_options(${library} PRIVATE "LINKER:--whole-archive,${archive},--no-whole-archive")
  endif()
endforeach()
