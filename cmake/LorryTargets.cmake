# lorry_library(base SRCS a.cc DEPS absl::strings)      -> target lorry_base, alias lorry::base
# lorry_executable(adapter-store SRCS main.cc DEPS ...) -> build/<preset>/bin/adapter-store
# lorry_test(peft_digest SRCS digest_test.cc DEPS lorry::peft [LABELS slow] [TIMEOUT 120])
# lorry_proto(NAME proto PROTOS lorry/common/v1/x.proto [GRPC])  -> alias lorry::proto
#
# Includes are written from the repository root: #include "lib/base/status.h".

include(GNUInstallDirs)
# Where headers lie below the prefix once they are installed, with the same paths as here.
set(LORRY_INSTALL_INCLUDE ${CMAKE_INSTALL_INCLUDEDIR}/lorry)

function(lorry_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(LORRY_MUTANTS)
    lorry_mutate(ARG_SRCS)
    list(APPEND ARG_DEPS lorry_mutants)
  endif()
  if(ARG_SRCS)
    add_library(lorry_${name} STATIC ${ARG_SRCS})
    target_include_directories(lorry_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
      $<INSTALL_INTERFACE:${LORRY_INSTALL_INCLUDE}>)
    target_link_libraries(lorry_${name} PUBLIC ${ARG_DEPS} PRIVATE lorry_warnings)
  else()
    add_library(lorry_${name} INTERFACE)
    target_include_directories(lorry_${name} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
      $<INSTALL_INTERFACE:${LORRY_INSTALL_INCLUDE}>)
    target_link_libraries(lorry_${name} INTERFACE ${ARG_DEPS})
  endif()
  add_library(lorry::${name} ALIAS lorry_${name})
endfunction()

function(lorry_executable name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} lorry_warnings)
endfunction()

function(lorry_test name)
  if(NOT LORRY_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name}_test ${ARG_SRCS})
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main lorry_warnings)
  target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR})
  # One ctest entry a program: starting a process per case would cost more than most cases do.
  add_test(NAME ${name} COMMAND ${name}_test)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(LORRY_MUTANTS)
    lorry_judges(${name} judges)
    if(judges)
      add_dependencies(mutants ${name}_test)
    endif()
  endif()
endfunction()

# Generated code is compiled once, with warnings and sanitizers off, and its headers are SYSTEM headers.
function(lorry_proto)
  cmake_parse_arguments(ARG "GRPC" "NAME" "PROTOS;DEPS" ${ARGN})
  set(target lorry_${ARG_NAME})
  add_library(${target} STATIC ${ARG_PROTOS})
  target_link_libraries(${target} PUBLIC protobuf::libprotobuf ${ARG_DEPS})
  target_include_directories(${target} SYSTEM PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_BINARY_DIR}>
    $<INSTALL_INTERFACE:${LORRY_INSTALL_INCLUDE}>)
  target_compile_options(${target} PRIVATE -w)
  if(LORRY_SANITIZE)
    target_compile_options(${target} PRIVATE -fno-sanitize=all)
  endif()
  protobuf_generate(TARGET ${target} IMPORT_DIRS ${CMAKE_CURRENT_SOURCE_DIR}
    PROTOC_OUT_DIR ${CMAKE_CURRENT_BINARY_DIR})
  if(ARG_GRPC)
    target_link_libraries(${target} PUBLIC gRPC::grpc++)
    protobuf_generate(TARGET ${target} LANGUAGE grpc IMPORT_DIRS ${CMAKE_CURRENT_SOURCE_DIR}
      PROTOC_OUT_DIR ${CMAKE_CURRENT_BINARY_DIR} GENERATE_EXTENSIONS .grpc.pb.h .grpc.pb.cc
      PLUGIN "protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>")
  endif()
  add_library(lorry::${ARG_NAME} ALIAS ${target})
endfunction()
