# What Debian packages hold, and what `cmake --install` installs: component `volvelle` is the program; component `dev`
# one static library with the headers of what it is made of, for CMake and pkg-config. package.sh makes the packages.

set(package ${CMAKE_CURRENT_LIST_DIR}/package)

# All of the runtime, and nothing of its commands.
add_library(volvelle_archive STATIC $<TARGET_OBJECTS:volvelle_platforms> $<TARGET_OBJECTS:volvelle_kernels>
  $<TARGET_OBJECTS:volvelle_runtime> $<TARGET_OBJECTS:volvelle_tokenizer>)
set_target_properties(volvelle_archive PROPERTIES OUTPUT_NAME volvelle EXPORT_NAME volvelle LINKER_LANGUAGE CXX)
if(NOT VOLVELLE_PACKAGE)
  set_target_properties(volvelle_archive PROPERTIES EXCLUDE_FROM_ALL ON)
  return()
endif()

target_compile_features(volvelle_archive INTERFACE cxx_std_23)
target_include_directories(volvelle_archive INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/volvelle>)
target_link_libraries(volvelle_archive INTERFACE XNNPACK pthreadpool Threads::Threads hwy::hwy
  flatbuffers::flatbuffers $<INSTALL_INTERFACE:PkgConfig::VOLVELLE_LIBRARIES>)
install(TARGETS volvelle_archive EXPORT volvelle-targets DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
install(EXPORT volvelle-targets NAMESPACE volvelle:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/volvelle COMPONENT dev)
configure_file(${package}/volvelle.pc.in ${PROJECT_BINARY_DIR}/volvelle.pc @ONLY)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/volvelle-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/volvelle.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
install(FILES ${package}/volvelle-config.cmake ${PROJECT_BINARY_DIR}/volvelle-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/volvelle COMPONENT dev)
foreach(folder platforms kernels runtime runtime/tokenizer)
  file(GLOB headers ${PROJECT_SOURCE_DIR}/${folder}/*.h)
  list(FILTER headers EXCLUDE REGEX "-inl\\.h$")
  install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/volvelle/${folder} COMPONENT dev)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/schema/volvelle_generated.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/volvelle/schema COMPONENT dev)

# The documents that Debian asks of every package.
find_program(GZIP gzip REQUIRED)
function(compressed name text)
  file(WRITE ${PROJECT_BINARY_DIR}/${name} "${text}")
  execute_process(COMMAND ${GZIP} -9nf ${PROJECT_BINARY_DIR}/${name} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
string(TIMESTAMP today "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(VOLVELLE_MAINTAINER "The Volvelle authors <volvelle@localhost.localdomain>" CACHE STRING "Who answers for the packages")
set(maintainer "${VOLVELLE_MAINTAINER}")
file(READ ${package}/volvelle.1 manual)
compressed(volvelle.1 "${manual}")
install(FILES ${PROJECT_BINARY_DIR}/volvelle.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT volvelle)
foreach(component volvelle dev)
  set(name volvelle)
  if(component STREQUAL dev)
    set(name libvolvelle-dev)
  endif()
  compressed(${name}.changelog
    "volvelle (${PROJECT_VERSION}) unstable; urgency=medium\n\n  * As built from its sources.\n\n -- ${maintainer}  ${today}\n")
  set(documents ${CMAKE_INSTALL_DATAROOTDIR}/doc/${name})
  install(FILES ${PROJECT_BINARY_DIR}/${name}.changelog.gz DESTINATION ${documents} RENAME changelog.gz
    COMPONENT ${component})
  install(FILES ${package}/copyright DESTINATION ${documents} COMPONENT ${component})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME volvelle)
set(CPACK_PACKAGE_CONTACT "${maintainer}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference runtime for transformers on small devices")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL volvelle dev)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
if(CMAKE_CROSSCOMPILING)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
set(CPACK_DEBIAN_VOLVELLE_PACKAGE_NAME volvelle)
set(CPACK_DEBIAN_VOLVELLE_PACKAGE_SECTION science)
set(CPACK_DEBIAN_VOLVELLE_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_VOLVELLE_DESCRIPTION "Runs language models and encoders on the processor of a board, a phone or a
PC. Its converter reads published checkpoints (Hugging Face folders, GGUF) and
bakes their positions into tables; the runtime executes blocks.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libvolvelle-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libxnnpack-dev, libpthreadpool-dev, libhwy-dev, libflatbuffers-dev, libpcre2-dev, libutf8proc-dev, libxxhash-dev")
set(CPACK_COMPONENT_DEV_DESCRIPTION "These are its development files: the static library and C++ headers of the
runtime, which loads converted models and computes tokens and vectors, with
files for CMake and pkg-config.")
include(CPack)
