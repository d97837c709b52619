# Pinned sources of every library, for systems whose packages are too old (see packages.cmake for the names
# this file must provide). A git commit is its own checksum; archives carry a SHA-256. To build without a
# network, point FETCHCONTENT_SOURCE_DIR_<NAME> (XNNPACK, PTHREADPOOL, CPUINFO, FXDIV, KLEIDIAI, HIGHWAY,
# FLATBUFFERS, PCRE2, UTF8PROC, NLOHMANN_JSON, CLI11, DOCTEST, XXHASH) at unpacked sources.

include(FetchContent)
find_package(Threads REQUIRED)
find_program(GIT git)
if(NOT GIT)
  message(FATAL_ERROR "-DVOLVELLE_FETCH=ON needs git: install it first.")
endif()

# What the libraries read of their own accord: no shared builds, tests, tools or installed files.
set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)   # option() respects the variables below
set(CMAKE_POLICY_VERSION_MINIMUM 3.5)   # some state minima that CMake 4 no longer accepts
set(BUILD_SHARED_LIBS OFF)
set(BUILD_TESTING OFF)

set(aside SYSTEM)
if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.28)
  list(APPEND aside EXCLUDE_FROM_ALL)
endif()
function(volvelle_pin name repository commit)
  FetchContent_Declare(${name} GIT_REPOSITORY https://github.com/${repository}.git GIT_TAG ${commit}
    GIT_SUBMODULES "" ${aside} ${ARGN})
endfunction()
function(volvelle_pin_archive name url sha256)
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${sha256} DOWNLOAD_EXTRACT_TIMESTAMP OFF
    ${aside} ${ARGN})
endfunction()
set(only_unpack SOURCE_SUBDIR do-not-configure)  # MakeAvailable configures only folders that exist

# XNNPACK as Debian 13 has it, and the companions that this commit names itself.
volvelle_pin(xnnpack google/XNNPACK 4ea82e595b36106653175dcb04b2aa532660d0d8)
volvelle_pin_archive(pthreadpool
  https://github.com/Maratyszcza/pthreadpool/archive/4fe0e1e183925bf8cfa6aae24237e724a96479b8.zip
  a4cf06de57bfdf8d7b537c61f1c3071bce74e57524fe053e0bbd2332feca7f95 ${only_unpack})
volvelle_pin_archive(cpuinfo
  https://github.com/pytorch/cpuinfo/archive/dff2616ddd49122b63abcf44d2c097483b77f861.zip
  a57f2b93704fe49ad37fa3ef5ce8208443d6b589b89653341332bcf51aa6dde3 ${only_unpack})
volvelle_pin_archive(fxdiv
  https://github.com/Maratyszcza/FXdiv/archive/b408327ac2a15ec3e43352421954f5b1967701d1.zip
  ab7dfb08829bee33dca38405d647868fb214ac685e379ec7ef2bebcd234cd44d ${only_unpack})
volvelle_pin_archive(kleidiai
  https://gitlab.arm.com/kleidi/kleidiai/-/archive/382b07835c43fcb0401cb4dab3c8fb85eaf187b6/kleidiai-382b07835c43fcb0401cb4dab3c8fb85eaf187b6.zip
  6682b7a2795c711c1dd23ada552675b6514523e991043753648f2cad826f588f ${only_unpack})

volvelle_pin(highway google/highway 457c891775a7397bdb0376bb1031e6e027af1c48)  # 1.2.0
volvelle_pin(flatbuffers google/flatbuffers 0100f6a5779831fa7a651e4b67ef389a8752bd9b)  # 23.5.26
volvelle_pin_archive(pcre2
  https://github.com/PCRE2Project/pcre2/releases/download/pcre2-10.46/pcre2-10.46.tar.gz
  8d28d7f2c3b970c3a4bf3776bcbb5adfc923183ce74bc8df1ebaad8c1985bd07)
volvelle_pin(utf8proc JuliaStrings/utf8proc 34db3f7954e9298e89f42641ac78e0450f80a70d)  # 2.9.0
volvelle_pin(nlohmann_json nlohmann/json 9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03)  # 3.11.3
volvelle_pin(cli11 CLIUtils/CLI11 6c7b07a878ad834957b98d0f9ce1dbe0cb204fc9)  # 2.4.2
volvelle_pin(doctest doctest/doctest ae7a13539fb71f270b87eb2e874fbac80bc8dda2 OVERRIDE_FIND_PACKAGE)  # 2.4.11
volvelle_pin(xxhash Cyan4973/xxHash e626a72bc2321cd320e953a0ccf1584cad60f363 ${only_unpack})  # 0.8.3

# XNNPACK takes its companions as folders, which it would otherwise download unasked.
set(companions pthreadpool cpuinfo fxdiv)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)")
  list(APPEND companions kleidiai)
endif()
foreach(companion ${companions})
  FetchContent_MakeAvailable(${companion})
  string(TOUPPER ${companion} upper)
  set(${upper}_SOURCE_DIR ${${companion}_SOURCE_DIR})
endforeach()
set(XNNPACK_BUILD_TESTS OFF)
set(XNNPACK_BUILD_BENCHMARKS OFF)
set(XNNPACK_BUILD_ALL_MICROKERNELS OFF)
set(XNNPACK_LIBRARY_TYPE static)
set(PTHREADPOOL_LIBRARY_TYPE static)
set(PTHREADPOOL_BUILD_TESTS OFF)
set(PTHREADPOOL_BUILD_BENCHMARKS OFF)
set(CPUINFO_LIBRARY_TYPE static)
foreach(part TOOLS UNIT_TESTS MOCK_TESTS BENCHMARKS PKG_CONFIG)
  set(CPUINFO_BUILD_${part} OFF)
endforeach()
FetchContent_MakeAvailable(xnnpack)
set(XNNPACK_LIBRARY XNNPACK)
set(PTHREADPOOL_LIBRARY pthreadpool)

set(HWY_ENABLE_TESTS OFF)
set(HWY_ENABLE_EXAMPLES OFF)
set(HWY_ENABLE_CONTRIB OFF)
set(HWY_ENABLE_INSTALL OFF)
FetchContent_MakeAvailable(highway)
if(NOT TARGET hwy::hwy)
  add_library(hwy::hwy ALIAS hwy)
endif()

set(FLATBUFFERS_BUILD_TESTS OFF)
set(FLATBUFFERS_BUILD_FLATHASH OFF)
set(FLATBUFFERS_INSTALL OFF)
FetchContent_MakeAvailable(flatbuffers)
if(NOT TARGET flatbuffers::flatbuffers)
  add_library(flatbuffers::flatbuffers ALIAS flatbuffers)
endif()
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  find_program(FLATC flatc REQUIRED)  # of the machine that builds
else()
  set(FLATC $<TARGET_FILE:flatc>)
endif()

set(PCRE2_BUILD_PCRE2GREP OFF)
set(PCRE2_BUILD_TESTS OFF)
set(PCRE2_SUPPORT_JIT ON)
FetchContent_MakeAvailable(pcre2)
add_library(PkgConfig::PCRE2 ALIAS pcre2-8-static)

set(UTF8PROC_ENABLE_TESTING OFF)
set(UTF8PROC_INSTALL OFF)
FetchContent_MakeAvailable(utf8proc)
add_library(PkgConfig::UTF8PROC ALIAS utf8proc)

set(JSON_BuildTests OFF)
set(JSON_Install OFF)
set(CLI11_BUILD_TESTS OFF)
set(CLI11_BUILD_EXAMPLES OFF)
set(CLI11_INSTALL OFF)
FetchContent_MakeAvailable(nlohmann_json cli11 xxhash)
target_include_directories(volvelle_options SYSTEM INTERFACE ${xxhash_SOURCE_DIR})

if(VOLVELLE_TESTS)
  set(DOCTEST_WITH_TESTS OFF)
  set(DOCTEST_NO_INSTALL ON)
  FetchContent_MakeAvailable(doctest)
endif()
