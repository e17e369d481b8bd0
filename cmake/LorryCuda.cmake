# LORRY_CUDA=AUTO|ON|OFF: whether the GPU part of clients/gpu is built. It needs nvcc 13: on $PATH, or from PyPI, where
# `tools/setup cuda` puts it into .cache/cuda. No GPU and no driver is needed to build. LORRY_HAS_CUDA says what became of it.
#
# lorry_cuda_kernels(out source)  out: the code of a .cu's kernels for LORRY_CUDA_ARCH, which the driver loads
# lorry_cuda_object(out source)   out: the object file of a .cu, linked with ${LORRY_CUDART}: for programs that are not shipped
#
# CMake's own CUDA language is not used: it does not find the parts of PyPI's compiler.
set(LORRY_CUDA AUTO CACHE STRING "Build for CUDA: AUTO (where nvcc is found), ON or OFF")
set(LORRY_CUDA_ARCH all-major CACHE STRING "nvcc's -arch: all-major for any GPU since 2018; sm_90, which compiles in a fifth of the time, for one kind")
set(LORRY_HAS_CUDA OFF)
if(NOT LORRY_CUDA STREQUAL "OFF")
  find_program(LORRY_NVCC nvcc HINTS ${PROJECT_SOURCE_DIR}/.cache/cuda/nvidia/cu13/bin)
  set(version 0)
  if(LORRY_NVCC)
    execute_process(COMMAND ${LORRY_NVCC} --version OUTPUT_VARIABLE version)
    string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" version "${version}")
    file(REAL_PATH ${LORRY_NVCC}/../.. cuda BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    find_path(LORRY_CUDA_INCLUDE cuda.h PATHS ${cuda}/include ${cuda}/targets/x86_64-linux/include NO_DEFAULT_PATH)
    find_file(LORRY_CUDART libcudart_static.a PATHS ${cuda}/lib ${cuda}/lib64 ${cuda}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
  endif()
  if(version VERSION_GREATER_EQUAL 13 AND LORRY_CUDA_INCLUDE AND LORRY_CUDART)
    set(LORRY_HAS_CUDA ON)
  elseif(LORRY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LORRY_CUDA=ON, and no CUDA 13 (nvcc: ${LORRY_NVCC} ${version}, runtime: ${LORRY_CUDART}): run tools/setup cuda, or put it on the path")
  endif()
endif()

# Products and sums are not fused, so that sums are the same on a GPU and on the CPU. 2810: nvcc takes an assignment of a
# [[nodiscard]] type for a discarded one.
function(lorry_nvcc output source)
  get_filename_component(path ${source} ABSOLUTE)
  add_custom_command(OUTPUT ${output}
    COMMAND ${LORRY_NVCC} -std=c++20 -O2 -arch=${LORRY_CUDA_ARCH} --fmad=false --expt-relaxed-constexpr -diag-suppress=2810
            -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler=-fPIC,-Wall,-Wextra $<$<BOOL:${LORRY_WERROR}>:-Werror=all-warnings> -I${PROJECT_SOURCE_DIR}
            -MD -MF ${output}.d ${ARGN} ${path} -o ${output}
    DEPENDS ${path} DEPFILE ${output}.d
    COMMENT "Compiling ${source} for CUDA" COMMAND_EXPAND_LISTS VERBATIM)
endfunction()

# Not compressed, which would save a sixth: tests read it.
function(lorry_cuda_kernels out source)
  lorry_nvcc(${CMAKE_CURRENT_BINARY_DIR}/${source}.fatbin ${source} -fatbin --no-compress)
  set(${out} ${CMAKE_CURRENT_BINARY_DIR}/${source}.fatbin PARENT_SCOPE)
endfunction()

function(lorry_cuda_object out source)
  lorry_nvcc(${CMAKE_CURRENT_BINARY_DIR}/${source}.o ${source} -c)
  set(${out} ${CMAKE_CURRENT_BINARY_DIR}/${source}.o PARENT_SCOPE)
endfunction()
