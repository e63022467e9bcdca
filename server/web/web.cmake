# The page's files as a table in the library `server` (server/page.h).
set(web_dir ${CMAKE_SOURCE_DIR}/server/web)
file(GLOB web_files CONFIGURE_DEPENDS ${web_dir}/*.html ${web_dir}/*.css ${web_dir}/*.js ${web_dir}/*.svg)
list(FILTER web_files EXCLUDE REGEX "/index\\.html$")
list(SORT web_files)
list(PREPEND web_files ${web_dir}/index.html)
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/generated/web_embedded.c
  COMMAND ${CMAKE_COMMAND} -DOUT=${CMAKE_BINARY_DIR}/generated/web_embedded.c "-DFILES=${web_files}"
    -P ${web_dir}/embed.cmake
  DEPENDS ${web_files} ${web_dir}/embed.cmake
  VERBATIM)
target_sources(server PRIVATE ${CMAKE_BINARY_DIR}/generated/web_embedded.c)
