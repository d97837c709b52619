# The libraries that Volvelle stands on, under one set of names wherever they come from:
#
#   XNNPACK_LIBRARY, PTHREADPOOL_LIBRARY        linear layers, threads
#   hwy::hwy                                    vector kernels
#   flatbuffers::flatbuffers, FLATC             the model file's table and its compiler
#   PkgConfig::PCRE2, PkgConfig::UTF8PROC       tokenizers
#   nlohmann_json::nlohmann_json, CLI11::CLI11  JSON, command lines
#   <xxhash.h>                                  checksums, header only
#   find_package(doctest)                       tests
#
# By default they are the system's packages (apt's names below); -DVOLVELLE_FETCH=ON takes the pinned
# sources of fetch.cmake instead.

if(VOLVELLE_FETCH)
  include(${CMAKE_CURRENT_LIST_DIR}/fetch.cmake)
  return()
endif()

# Notes the apt package when what it brings was not found, so that one message can name them all.
set(missing "")
macro(volvelle_needs package found)
  if(NOT ${found})
    list(APPEND missing ${package})
  endif()
endmacro()

find_package(PkgConfig QUIET)
find_package(Threads REQUIRED)
find_package(hwy 1.0.7 QUIET)
find_package(flatbuffers QUIET)
find_package(nlohmann_json QUIET)
find_package(CLI11 QUIET)
find_program(FLATC flatc)
find_library(XNNPACK_LIBRARY XNNPACK)
find_library(PTHREADPOOL_LIBRARY pthreadpool)
find_path(XXHASH_INCLUDE_DIR xxhash.h)
volvelle_needs(pkg-config PkgConfig_FOUND)
volvelle_needs(libhwy-dev hwy_FOUND)
volvelle_needs(libflatbuffers-dev flatbuffers_FOUND)
volvelle_needs(flatbuffers-compiler FLATC)
volvelle_needs(nlohmann-json3-dev nlohmann_json_FOUND)
volvelle_needs(libcli11-dev CLI11_FOUND)
volvelle_needs(libxnnpack-dev XNNPACK_LIBRARY)
volvelle_needs(libpthreadpool-dev PTHREADPOOL_LIBRARY)
volvelle_needs(libxxhash-dev XXHASH_INCLUDE_DIR)
if(PkgConfig_FOUND)
  pkg_check_modules(PCRE2 QUIET IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(UTF8PROC QUIET IMPORTED_TARGET libutf8proc)
endif()
volvelle_needs(libpcre2-dev PCRE2_FOUND)
volvelle_needs(libutf8proc-dev UTF8PROC_FOUND)
if(VOLVELLE_TESTS)
  find_package(doctest QUIET)
  volvelle_needs(doctest-dev doctest_FOUND)
endif()
if(missing)
  list(JOIN missing " " packages)
  message(FATAL_ERROR "Packages are missing: run platforms/debian/packages.sh build tests, or "
    "apt-get install ${packages}, or configure with -DVOLVELLE_FETCH=ON to build pinned sources.")
endif()

# Four-bit weights with bfloat16 scales came to XNNPACK in October 2024; the library has no version number.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES ${XNNPACK_LIBRARY} ${PTHREADPOOL_LIBRARY} Threads::Threads)
check_cxx_source_compiles("
  #include <xnnpack.h>
  int main() {
    const uint16_t* scales = nullptr;
    return xnn_create_fully_connected_nc_qd8_f32_qb4w(32, 1, 32, 1, 32, 8, scales, nullptr, nullptr, 0, 1, 0,
                                                      nullptr, nullptr, nullptr);
  }" VOLVELLE_XNNPACK_IS_NEW_ENOUGH)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT VOLVELLE_XNNPACK_IS_NEW_ENOUGH)
  message(FATAL_ERROR "${XNNPACK_LIBRARY} is older than October 2024 (or its interface has changed since): "
    "configure with -DVOLVELLE_FETCH=ON to build a pinned one.")
endif()
