# What runs inside the box: the stable-ABI module (no Python headers, no sanitizers, nothing linked but libc) and the
# harness, embedded in the library `verifier`.
set(inside_dir ${CMAKE_SOURCE_DIR}/verifier/inside)
add_library(inside MODULE
  ${inside_dir}/module.c ${inside_dir}/codec.c ${inside_dir}/serve.c ${inside_dir}/lockdown.c
  ${CMAKE_SOURCE_DIR}/verifier/landlock.c)
target_include_directories(inside PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(inside PRIVATE _GNU_SOURCE)
target_compile_options(inside PRIVATE -O2 -fvisibility=hidden -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion
  -Wvla -Wundef -Wcast-qual -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wwrite-strings
  -fno-strict-overflow -fstack-protector-strong)
target_link_options(inside PRIVATE -s -Wl,-z,relro,-z,now,-z,noexecstack)
target_link_libraries(inside PRIVATE Threads::Threads)
if(FIRSTPASS_WERROR)
  target_compile_options(inside PRIVATE -Werror)
endif()
set_target_properties(inside PROPERTIES PREFIX "" OUTPUT_NAME firstpass_inside SUFFIX .so
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/generated)

set(inside_scripts boot.py channel.py candidate.py remote.py results.py source.py traceless.py cases.py unittests.py doctests.py
  pytest_module.py pytests.py suite.py template.py)
set(inside_files module.so=$<TARGET_FILE:inside>)
set(inside_depends inside ${inside_dir}/embed.cmake)
foreach(script ${inside_scripts})
  list(APPEND inside_files ${script}=${inside_dir}/${script})
  list(APPEND inside_depends ${inside_dir}/${script})
endforeach()
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/generated/inside_embedded.c
  COMMAND ${CMAKE_COMMAND} -DOUT=${CMAKE_BINARY_DIR}/generated/inside_embedded.c "-DFILES=${inside_files}"
    -DTABLE=embedded -P ${inside_dir}/embed.cmake
  DEPENDS ${inside_depends}
  VERBATIM)
target_sources(verifier PRIVATE ${CMAKE_BINARY_DIR}/generated/inside_embedded.c)

# The attacks of tests and of `doctor --attack`.
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/generated/attacks_embedded.c
  COMMAND ${CMAKE_COMMAND} -DOUT=${CMAKE_BINARY_DIR}/generated/attacks_embedded.c
    "-DFILES=attacks.txt=${CMAKE_SOURCE_DIR}/verifier/attacks.txt" -DTABLE=embedded_attacks -P ${inside_dir}/embed.cmake
  DEPENDS ${CMAKE_SOURCE_DIR}/verifier/attacks.txt ${inside_dir}/embed.cmake
  VERBATIM)
target_sources(verifier PRIVATE ${CMAKE_BINARY_DIR}/generated/attacks_embedded.c)
