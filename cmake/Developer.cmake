# Targets for people who work on kvarena: format, format-check, tidy, docs. None is part of `all`.

find_program(KVARENA_CLANG_FORMAT clang-format)
find_program(KVARENA_RUN_CLANG_TIDY NAMES run-clang-tidy run-clang-tidy-14)
find_program(KVARENA_DOXYGEN doxygen)
find_package(Python3 COMPONENTS Interpreter)

# kvarena_developer_target(name tool package command...): a target, or a line that says what is missing.
function(kvarena_developer_target name tool package)
  if(tool AND Python3_FOUND)
    add_custom_target(${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} USES_TERMINAL VERBATIM)
  else()
    add_custom_target(${name}
      COMMAND ${CMAKE_COMMAND} -E echo "${name}: needs python3 and ${package}: apt-get install python3 ${package}"
      COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  endif()
endfunction()

set(check_format ${Python3_EXECUTABLE} tests/tidy/check_format.py --clang-format ${KVARENA_CLANG_FORMAT} .)
kvarena_developer_target(format "${KVARENA_CLANG_FORMAT}" clang-format ${check_format} --fix)
kvarena_developer_target(format-check "${KVARENA_CLANG_FORMAT}" clang-format ${check_format})
kvarena_developer_target(docs "${KVARENA_DOXYGEN}" doxygen
  ${Python3_EXECUTABLE} tests/tidy/check_docs.py --output ${PROJECT_BINARY_DIR}/docs .)
kvarena_developer_target(tidy "${KVARENA_RUN_CLANG_TIDY}" clang-tidy
  ${KVARENA_RUN_CLANG_TIDY} -quiet -p ${PROJECT_BINARY_DIR}
  -extra-arg=-Wno-unknown-warning-option "^${PROJECT_SOURCE_DIR}/(src|kernels|tools|examples)/.*[.]cpp$")
