# find_package(volvelle), then link volvelle::volvelle: C++23, with headers such as <runtime/session.h>.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(PkgConfig)
find_dependency(hwy)
find_dependency(flatbuffers)
pkg_check_modules(VOLVELLE_LIBRARIES REQUIRED QUIET IMPORTED_TARGET libpcre2-8 libutf8proc)
include(${CMAKE_CURRENT_LIST_DIR}/volvelle-targets.cmake)
