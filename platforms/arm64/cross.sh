#!/bin/bash
# Builds for 64-bit Arm on a PC: installs the cross compiler and arm64 libraries where they are missing, then
# builds as platforms/debian/build.sh does.
#
#   platforms/arm64/cross.sh FOLDER [-DOPTION=VALUE...] [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=${1:?cross.sh: name a folder}
shift
groups=(build)
[[ " $* " != *" -DVOLVELLE_TESTS=ON "* ]] || groups+=(tests)
platforms/debian/packages.sh --arm64 "${groups[@]}"
exec platforms/debian/build.sh "$folder" \
  "-DCMAKE_TOOLCHAIN_FILE=$PWD/platforms/arm64/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release "$@"
