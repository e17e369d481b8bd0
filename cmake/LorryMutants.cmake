# With LORRY_MUTANTS=ON the sources of tools/mutants/sources.txt are compiled from copies that have a switch at every
# place that can be mutated (tools/mutants/generate.py). The rest is built as always. The target `mutants` is everything
# that tools/mutants/run needs.
#
# lorry_mutate(srcs)             in a library's list, such sources are replaced by their copies
# lorry_judges(test judges)      whether sources.txt names this test

set(LORRY_MUTANTS_PYTHON ${PROJECT_SOURCE_DIR}/.cache/tools/venv/bin/python CACHE FILEPATH "Python that has libclang")
set(LORRY_MUTANTS_TOOL ${PROJECT_SOURCE_DIR}/tools/mutants)
set(LORRY_MUTANTS_BLOCK 1000)  # numbers for each file, so that a change of one leaves those of the others

set(LORRY_MUTANTS_GENERATOR generate.py points.py expressions.py source.py runtime.h)
list(TRANSFORM LORRY_MUTANTS_GENERATOR PREPEND ${LORRY_MUTANTS_TOOL}/)

add_custom_target(mutants)
add_subdirectory(${LORRY_MUTANTS_TOOL})

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${LORRY_MUTANTS_TOOL}/sources.txt)
file(STRINGS ${LORRY_MUTANTS_TOOL}/sources.txt lines REGEX "^[^#]")
set(LORRY_MUTANTS_SOURCES)
set(LORRY_MUTANTS_TESTS)
foreach(line ${lines})
  separate_arguments(words UNIX_COMMAND "${line}")
  list(POP_FRONT words pattern)
  file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${pattern})
  list(APPEND LORRY_MUTANTS_SOURCES ${found})
  list(APPEND LORRY_MUTANTS_TESTS ${words})
endforeach()
list(TRANSFORM LORRY_MUTANTS_TESTS REPLACE "[*]" ".*")
list(JOIN LORRY_MUTANTS_TESTS "|" LORRY_MUTANTS_TESTS)

function(lorry_mutate list)
  set(sources)
  foreach(source ${${list}})
    get_filename_component(source ${source} ABSOLUTE)
    list(FIND LORRY_MUTANTS_SOURCES ${source} index)
    if(NOT index EQUAL -1)
      math(EXPR first "${index} * ${LORRY_MUTANTS_BLOCK} + 1")
      file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
      set(copy ${PROJECT_BINARY_DIR}/mutated/${path})
      add_custom_command(OUTPUT ${copy} BYPRODUCTS ${copy}.json
        COMMAND ${LORRY_MUTANTS_PYTHON} -B ${LORRY_MUTANTS_TOOL}/generate.py --source=${source} --out=${copy} --first=${first}
                --block=${LORRY_MUTANTS_BLOCK} --commands=${PROJECT_BINARY_DIR}/compile_commands.json
        DEPENDS ${source} ${LORRY_MUTANTS_GENERATOR}
        COMMENT "Mutating ${path}" VERBATIM)
      set_source_files_properties(${copy} PROPERTIES COMPILE_OPTIONS "-w;-D_GLIBCXX_ASSERTIONS;-include;${LORRY_MUTANTS_TOOL}/runtime.h")
      set(source ${copy})
    endif()
    list(APPEND sources ${source})
  endforeach()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()

function(lorry_judges test judges)
  set(${judges} OFF PARENT_SCOPE)
  if(test MATCHES "^(${LORRY_MUTANTS_TESTS})$")
    set(${judges} ON PARENT_SCOPE)
  endif()
endfunction()
