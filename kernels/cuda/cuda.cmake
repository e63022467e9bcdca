# The CUDA backend, and the same sources for the host emulation of the tests.
#
#   FIRSTPASS_CUDA       AUTO: where there is nvcc of CUDA 13 or later (not with sanitizers); ON: must be; OFF
#   FIRSTPASS_CUDA_ARCH  what kernels are compiled for; 90 at the end as PTX is what later devices get
set(FIRSTPASS_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set(FIRSTPASS_CUDA_ARCH "80;86;89;90a" CACHE STRING "GPU architectures to compile kernels for")

set(cuda_kernels dequantize split rows norm rope attention_tile attention_warp merge sample)
set(cuda_host items state weights forward draws cuda)
list(TRANSFORM cuda_kernels PREPEND kernels/cuda/)
list(TRANSFORM cuda_host PREPEND kernels/cuda/)
set(cuda_host_sources ${cuda_host})
list(TRANSFORM cuda_host_sources APPEND .c)

# ---- the backend ----
set(cuda_wanted ${FIRSTPASS_CUDA})
if(cuda_wanted STREQUAL "AUTO")
  set(cuda_wanted OFF)
  find_program(FIRSTPASS_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(FIRSTPASS_NVCC AND NOT FIRSTPASS_SANITIZE AND NOT FIRSTPASS_FUZZ)
    set(cuda_wanted ON)
  endif()
elseif(cuda_wanted)
  find_program(FIRSTPASS_NVCC nvcc HINTS /usr/local/cuda/bin REQUIRED)
endif()
if(cuda_wanted)
  get_filename_component(cuda_root ${FIRSTPASS_NVCC} REALPATH)
  get_filename_component(cuda_root ${cuda_root}/../.. ABSOLUTE)
  execute_process(COMMAND ${FIRSTPASS_NVCC} --version OUTPUT_VARIABLE cuda_version)
  string(REGEX REPLACE ".*release ([0-9]+\\.[0-9]+).*" "\\1" cuda_version "${cuda_version}")
  find_library(FIRSTPASS_CUDART cudart_static HINTS ${cuda_root}/lib64 ${cuda_root}/lib)
  if(cuda_version VERSION_LESS 13 OR NOT FIRSTPASS_CUDART OR NOT EXISTS ${cuda_root}/include/cublasLt.h)
    if(FIRSTPASS_CUDA STREQUAL "AUTO")
      set(cuda_wanted OFF)
    else()
      message(FATAL_ERROR "FIRSTPASS_CUDA: CUDA 13 with its static runtime and cuBLASLt's header is wanted; "
        "${FIRSTPASS_NVCC} is of ${cuda_version}, libcudart_static.a: ${FIRSTPASS_CUDART}")
    endif()
  endif()
endif()
if(cuda_wanted)
  message(STATUS "CUDA backend: nvcc ${cuda_version}, for ${FIRSTPASS_CUDA_ARCH} and PTX")
  set(cuda_flags -std=c++17 -O3 -lineinfo -Xcompiler=-Wall,-Wextra,-fPIC,-fno-exceptions,-fno-threadsafe-statics --Werror=all-warnings
    -Xptxas=--warn-on-spills -I${CMAKE_SOURCE_DIR})
  foreach(arch ${FIRSTPASS_CUDA_ARCH})
    list(APPEND cuda_flags -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  list(APPEND cuda_flags -gencode=arch=compute_90,code=compute_90)
  foreach(kernel ${cuda_kernels})
    set(object ${CMAKE_BINARY_DIR}/${kernel}.cu.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${FIRSTPASS_NVCC} ${cuda_flags} -MD -MF ${object}.d
        -c ${CMAKE_SOURCE_DIR}/${kernel}.cu -o ${object}
      DEPENDS ${kernel}.cu DEPFILE ${object}.d COMMENT "nvcc ${kernel}.cu" VERBATIM)
    target_sources(kernels PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endforeach()
  target_sources(kernels PRIVATE ${cuda_host_sources} kernels/cuda/gpu.c kernels/cuda/gemm.c)
  set_source_files_properties(kernels/kernels.c PROPERTIES COMPILE_DEFINITIONS KERNELS_CUDA)
  target_include_directories(kernels SYSTEM PRIVATE ${cuda_root}/include)
  target_link_libraries(kernels PUBLIC ${FIRSTPASS_CUDART} rt ${CMAKE_DL_LIBS})
endif()

# ---- the host emulation: the same kernels, thread by thread, with no GPU ----
# Objects, not an archive: they come before what the engine's own libraries have by the same names.
if(BUILD_TESTING)
  enable_language(CXX)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(emulated_kernels ${cuda_kernels})
  list(TRANSFORM emulated_kernels APPEND .cu)
  set_source_files_properties(${emulated_kernels} PROPERTIES LANGUAGE CXX)
  add_library(kernels_emulated OBJECT ${emulated_kernels} ${cuda_host_sources} kernels/host_emulation/emulate.c
    kernels/host_emulation/fiber.c kernels/host_emulation/gpu_host.c kernels/kernels.c)
  target_compile_features(kernels_emulated PRIVATE cxx_std_17)
  target_compile_definitions(kernels_emulated PUBLIC KERNELS_HOST_EMULATION KERNELS_CUDA)
  target_link_libraries(kernels_emulated PUBLIC firstpass_flags)
  add_library(gemm_emulated OBJECT kernels/host_emulation/gemm_host.c)
  target_link_libraries(gemm_emulated PUBLIC firstpass_flags)
endif()
