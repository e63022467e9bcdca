# Compiler flags of the files for one instruction set; which of them runs is chosen by cpuid at run time (isa.c).
# -O3 so that GCC 12 turns the fixed-size loops over rows and lanes into registers; no fast-math anywhere.
set(isa_vector_flags "-O3;-Wno-psabi")
set_source_files_properties(kernels/cpu/matmul_generic.c kernels/cpu/vector_generic.c kernels/cpu/reference.c
  kernels/cpu/pack.c kernels/quant.c PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(kernels/cpu/matmul_avx2.c kernels/cpu/vector_avx2.c
    PROPERTIES COMPILE_OPTIONS "${isa_vector_flags};-mavx2;-mfma;-mf16c")
  set_source_files_properties(kernels/cpu/matmul_avx512vnni.c kernels/cpu/vector_avx512vnni.c
    PROPERTIES COMPILE_OPTIONS
    "${isa_vector_flags};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512")
endif()
