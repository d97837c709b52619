#!/bin/bash
# Installs the Debian packages that Volvelle needs, where they are missing.
#
#   platforms/debian/packages.sh [--list] [--arm64] [build] [sample] [tests] [package] [bench]      (default: build)
#
#   --list    prints their names instead
#   --arm64   those to build and test for 64-bit Arm on a PC; its libraries take the place of the PC's own
set -euo pipefail

build=(g++ cmake ninja-build ccache pkg-config flatbuffers-compiler nlohmann-json3-dev libcli11-dev)
libraries=(libxnnpack-dev libpthreadpool-dev libhwy-dev libflatbuffers-dev libpcre2-dev libutf8proc-dev libxxhash-dev)
sample=(python3-pip unzip)               # to fetch the sample checkpoint
tests=(doctest-dev clang-format xz-utils)
package=(dpkg-dev file lintian)
bench=(libbenchmark-dev)

list=0 arm64=0
while [[ ${1:-} = --* ]]; do
  case $1 in
    --list) list=1 ;;
    --arm64) arm64=1 ;;
    *) echo "packages.sh: $1 is not one of --list, --arm64" >&2; exit 2 ;;
  esac
  shift
done
if [ $arm64 = 1 ] && [ "$(uname -m)" != aarch64 ]; then
  build+=(g++-aarch64-linux-gnu "${libraries[@]/%/:arm64}")
  tests+=(binutils-aarch64-linux-gnu qemu-user-static)
else
  build+=("${libraries[@]}")
fi
wanted=()
for group in "${@:-build}"; do
  case $group in
    build) wanted+=("${build[@]}") ;;
    sample) wanted+=("${sample[@]}") ;;
    tests) wanted+=("${tests[@]}") ;;
    package) wanted+=("${package[@]}") ;;
    bench) wanted+=("${bench[@]}") ;;
    *) echo "packages.sh: $group is not one of build, sample, tests, package, bench" >&2; exit 2 ;;
  esac
done
[ $list = 1 ] && { printf '%s\n' "${wanted[@]}"; exit; }

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=absent
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} = 0 ] && exit

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || {
    echo "These packages are missing; as root, run: apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "Installing ${#missing[@]} packages: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >>"$log" 2>&1; }
[ $arm64 = 0 ] || "${as_root[@]}" dpkg --add-architecture arm64
# An update that reaches only some sources is enough if the install then succeeds.
apt update || true
apt install --no-install-recommends "${missing[@]}" || {
  tail -n 15 "$log" >&2
  echo "The packages could not be installed; the lines above are apt's reasons." >&2
  exit 1
}
