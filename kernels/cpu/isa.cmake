# Compiler flags of the files for one instruction set; which of them runs is chosen by cpuid at run time (isa.c).
# -O3 so that GCC 12 turns the fixed-size loops over rows and lanes into registers; no fast-math anywhere.
# With sanitizers -O1, and none for undefined behaviour in the unrolled products (the address one stays): they
# instrument every step, and one file took many minutes to compile.
if(FIRSTPASS_SANITIZE)
  set(isa_optimise "-O1")
  set(isa_matmul "-O1;-Wno-psabi;-fno-sanitize=undefined")
  set(isa_generic "-O1;-fno-inline")
else()
  set(isa_optimise "-O3")
  set(isa_matmul "-O3;-Wno-psabi")
  set(isa_generic "-O3")
endif()
set(isa_vector "${isa_optimise};-Wno-psabi")
set_source_files_properties(kernels/cpu/matmul_generic.c kernels/cpu/ceiling_generic.c kernels/cpu/vector_generic.c PROPERTIES COMPILE_OPTIONS
  "${isa_generic}")
set_source_files_properties(kernels/cpu/reference.c kernels/cpu/pack.c kernels/cpu/ceiling.c kernels/quant.c PROPERTIES COMPILE_OPTIONS
  "${isa_optimise}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(isa_avx2 "-mavx2;-mfma;-mf16c")
  set(isa_avx512 "${isa_avx2};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mprefer-vector-width=512")
  set_source_files_properties(kernels/cpu/matmul_avx2.c PROPERTIES COMPILE_OPTIONS "${isa_matmul};${isa_avx2}")
  set_source_files_properties(kernels/cpu/ceiling_avx2.c kernels/cpu/vector_avx2.c PROPERTIES COMPILE_OPTIONS "${isa_vector};${isa_avx2}")
  set_source_files_properties(kernels/cpu/matmul_avx512vnni.c PROPERTIES COMPILE_OPTIONS
    "${isa_matmul};${isa_avx512}")
  set_source_files_properties(kernels/cpu/matmul_amx.c kernels/cpu/ceiling_amx.c PROPERTIES COMPILE_OPTIONS
    "${isa_matmul};${isa_avx512};-mamx-tile;-mamx-int8")
  set_source_files_properties(kernels/cpu/ceiling_avx512vnni.c kernels/cpu/vector_avx512vnni.c PROPERTIES COMPILE_OPTIONS
    "${isa_vector};${isa_avx512}")
endif()
