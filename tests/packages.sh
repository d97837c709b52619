#!/bin/bash
# Makes what is installed elsewhere, installs it into an empty root that holds nothing but what it depends on, and generates
# text there; builds a program against the library; and prints what it weighs. Ends with "N passed, M failed".
#
#   tests/packages.sh [amd64|arm64|folder]      (default: amd64; the others are made here and run emulated)
#
# $SAMPLE is a checkpoint to take instead of a tiny one. Root is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=${1:-amd64}
passed=0 failed=0
check() {  # NAME COMMAND...
  local name=$1
  shift
  if "$@"; then passed=$((passed + 1)); echo "$name: passed"; else failed=$((failed + 1)); echo "$name: failed"; fi
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/tmp" "$root/proc" "$root/sys"
# As base-files has them.
for folder in bin lib lib64 sbin; do mkdir -p "$root/usr/$folder" && ln -s "usr/$folder" "$root/$folder"; done

# The packages that a .deb pulls in where nothing is installed, unpacked; no script of theirs runs.
unpack_with_dependencies() {  # DEB ARCHITECTURE
  local options=(-o Dir::State::status="$work/status" -o APT::Architecture="$2" -o APT::Architectures="$2"
    -o Dir::Cache::archives="$work/archives" -o APT::Install-Recommends=false -o APT::Sandbox::User=root)
  mkdir -p "$work/archives/partial"
  : >"$work/status"
  apt-get -q -y "${options[@]}" --download-only install "$(realpath "$1")" >"$work/apt.log" 2>&1 || {
    tail -n 20 "$work/apt.log"
    return 1
  }
  local package
  for package in "$work"/archives/*.deb "$1"; do dpkg-deb -x "$package" "$root"; done
}

emulator=()
case $what in
  amd64) mapfile -t debs < <(platforms/debian/package.sh) ;;
  arm64) mapfile -t debs < <(platforms/debian/package.sh --arm64) ;;
  folder) folder=$(platforms/android/folder.sh build-package-arm64) ;;
  *) echo "packages.sh: $what is not one of amd64, arm64, folder" >&2; exit 2 ;;
esac
if [ "$what" != amd64 ]; then
  cp "$(command -v qemu-aarch64-static)" "$root/emulator"
  emulator=(/emulator -cpu "${QEMU_CPU:-cortex-a76}")
fi
volvelle=(/usr/bin/volvelle)
if [ "$what" = folder ]; then
  cp -r "$folder" "$root/volvelle"
  # The start script needs a shell, which an empty root has not: its command is given by hand.
  volvelle=(/volvelle/lib/ld-linux-aarch64.so.1 --library-path /volvelle/lib /volvelle/lib/volvelle)
else
  for deb in "${debs[@]}"; do
    case $deb in
      */volvelle_*) program=$deb ;;
      */libvolvelle-dev_*) library=$deb ;;
    esac
  done
  check "volvelle installs where nothing is" unpack_with_dependencies "$program" "$what"
fi

run() { run_program "${volvelle[@]}" "$@"; }
run_program() {  # in a mount namespace of its own, with what the kernel tells
  # shellcheck disable=SC2016  # expanded inside
  unshare --mount --propagation unchanged bash -c '
    root=$1
    shift
    mount --make-rprivate / 2>/dev/null || true  # a chroot has nothing there that is mounted
    mount --rbind /proc "$root/proc" && mount --rbind /sys "$root/sys" && exec chroot "$root" "$@"
  ' run "$root" "${emulator[@]}" "$@"
}
generates() {
  local text
  if [ -n "${SAMPLE:-}" ]; then
    cp "$SAMPLE" "$root/tmp/sample.gguf"
    run convert /tmp/sample.gguf -o /tmp/model.vvl >/dev/null && text=$(run run /tmp/model.vvl -p "The capital of France is" -n 4) &&
      [[ $text == *Paris* ]]
  else
    cp -r tests/goldens/llama_grouped_heads "$root/tmp/checkpoint"
    run convert /tmp/checkpoint -o /tmp/model.vvl >/dev/null && text=$(run run /tmp/model.vvl --tokens 1,2,3 --ids -n 4 --ignore-eos) &&
      [ "$(wc -w <<<"$text")" = 4 ]
  fi
}
check "it generates in a root of its own ($what)" generates

# A program of a user of the library, found by CMake and by pkg-config.
builds_against_library() {
  dpkg -i "$library" >"$work/dpkg.log" 2>&1 || { tail -n 5 "$work/dpkg.log"; return 1; }
  mkdir -p "$work/user"
  cat >"$work/user/main.cc" <<'CODE'
#include <runtime/session.h>

#include <cstdio>

int main(int argc, char** argv) {
  auto model = volvelle::Model::load(argc > 1 ? argv[1] : "");
  if (!model) return std::fputs(model.error().message.c_str(), stderr), 1;
  auto pool = volvelle::ThreadPool::make(1);
  auto session = volvelle::Session::open(*model, *pool, {.context = 8});
  if (!session) return std::fputs(session.error().message.c_str(), stderr), 1;
  const int32_t tokens[] = {1, 2, 3};
  const auto logits = (*session)->feed(tokens);
  return logits && logits->size() == (*model)->vocabulary() ? 0 : 1;
}
CODE
  cat >"$work/user/CMakeLists.txt" <<'CODE'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C CXX)
find_package(volvelle REQUIRED)
add_executable(user main.cc)
target_link_libraries(user PRIVATE volvelle::volvelle)
CODE
  local toolchain=() compiler=g++ triple
  triple=$(dpkg-architecture -q DEB_HOST_MULTIARCH 2>/dev/null)
  if [ "$what" = arm64 ]; then
    toolchain=("-DCMAKE_TOOLCHAIN_FILE=$PWD/platforms/arm64/toolchain.cmake") compiler=aarch64-linux-gnu-g++ triple=aarch64-linux-gnu
  fi
  { cmake -S "$work/user" -B "$work/user/build" "${toolchain[@]}" && cmake --build "$work/user/build" &&
    PKG_CONFIG_LIBDIR=/usr/lib/$triple/pkgconfig:/usr/share/pkgconfig bash -c \
      "$compiler -std=c++23 $work/user/main.cc -o $work/user/by_pkg_config \$(pkg-config --cflags --libs volvelle)"; } >"$work/user.log" 2>&1 ||
    { tail -n 20 "$work/user.log"; return 1; }
  local program
  for program in "$work/user/build/user" "$work/user/by_pkg_config"; do
    ${emulator[0]:+qemu-aarch64-static} "$program" "$root/tmp/model.vvl" || return 1
  done
}
if [ "$what" != folder ]; then check "a program is built against libvolvelle-dev and runs" builds_against_library; fi

# What a device must hold, stripped: libc, libm, libstdc++ and libgcc not counted. The program without the converter and
# libvolvelle are to have at most 1.5 MB each, the program with its libraries 5 MB, on 64-bit Arm 4 MB.
stripped() {  # FILE...: bytes of what is loaded
  local size=size
  [ "$what" = amd64 ] || size=aarch64-linux-gnu-size
  "$size" "$@" | awk 'NR > 1 { sum += $1 + $2 } END { print sum + 0 }'
}
generates_the_same() {
  local options=(/tmp/model.vvl --tokens 1,2,3 --ids -n 8 --ignore-eos)
  [ "$(run run "${options[@]}")" = "$(run_program /tmp/runtime_only run "${options[@]}")" ]
}
footprint() {
  local triple=x86_64-linux-gnu most=5000000 build=build-package sum=0 file name bytes
  [ "$what" = amd64 ] || { triple=aarch64-linux-gnu most=4000000 build=build-package-arm64; }
  local options=()
  [ "$what" = amd64 ] || options=("-DCMAKE_TOOLCHAIN_FILE=$PWD/platforms/arm64/toolchain.cmake")
  platforms/debian/build.sh "$build-runtime" "${options[@]}" -DCMAKE_BUILD_TYPE=Release -DVOLVELLE_CONVERTER=OFF \
    volvelle || return 1
  cp "$build-runtime/volvelle" "$root/tmp/runtime_only"
  check "the program without the converter generates the same" generates_the_same
  local program library compiler=g++
  [ "$what" = amd64 ] || compiler=aarch64-linux-gnu-g++
  # All of the library, once: in an archive every file has its own copies of templates.
  "$compiler" -shared -o "$work/libvolvelle.so" -Wl,--whole-archive "$build/libvolvelle.a" \
    -Wl,--no-whole-archive || return 1
  program=$(stripped "$build-runtime/volvelle") library=$(stripped "$work/libvolvelle.so")
  for name in XNNPACK cpuinfo pthreadpool hwy pcre2-8 utf8proc; do
    file=$(find "$root/usr/lib/$triple" /usr/lib/"$triple" -name "lib$name.so*" -type f 2>/dev/null | head -n 1)
    bytes=$([ -n "$file" ] && stripped "$file" || echo 0)
    printf '  %-22s %9d bytes\n' "$name" "$bytes"
    sum=$((sum + bytes))
  done
  local fits=1
  within() {  # NAME BYTES MOST
    printf '  %-22s %9d bytes of %d\n' "$@"
    [ "$2" -le "$3" ] || fits=0
  }
  within "volvelle, runtime only" "$program" 1500000
  within libvolvelle "$library" 1500000
  within together $((sum + program)) $most
  [ $fits = 1 ]
}
if [ "$what" != folder ]; then check "it is as small as promised" footprint; fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
