# Android on 64-bit Arm, API 28 on, with the NDK that ANDROID_NDK_ROOT names (r27 or later: C++23's library). The
# libraries come as pinned sources (VOLVELLE_FETCH); see CMakePresets.json, preset `android`.
if(NOT DEFINED ENV{ANDROID_NDK_ROOT})
  message(FATAL_ERROR "ANDROID_NDK_ROOT is not set; let it name an NDK's folder.")
endif()
set(ANDROID_ABI arm64-v8a)
set(ANDROID_PLATFORM android-28)
set(ANDROID_STL c++_static)
set(ANDROID_SUPPORT_FLEXIBLE_PAGE_SIZES ON)  # newer phones have pages of 16 KiB
include($ENV{ANDROID_NDK_ROOT}/build/cmake/android.toolchain.cmake)
