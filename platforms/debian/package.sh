#!/bin/bash
# Makes Debian packages of what is in this folder: volvelle (the program) and libvolvelle-dev (library and headers).
#
#   platforms/debian/package.sh [--arm64] [FOLDER]      (default: build-package or build-package-arm64)
#
#   --arm64   those for 64-bit Arm, made on a PC
#
# They end in FOLDER/*.deb, and their names on standard output, once lintian finds no fault with them. $MAINTAINER, a name
# and an address, answers for them; without it, lintian is not asked about the address.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

arm64=0
[ "${1:-}" = --arm64 ] && { arm64=1; shift; }
if [ $arm64 = 1 ] && [ "$(uname -m)" != aarch64 ]; then
  folder=${1:-build-package-arm64}
  make=platforms/arm64/cross.sh groups=(--arm64 build package) triple=aarch64-linux-gnu
  export DEB_HOST_ARCH=arm64
else
  folder=${1:-build-package}
  make=platforms/debian/build.sh groups=(build package) triple=$(uname -m)-linux-gnu
fi
platforms/debian/packages.sh "${groups[@]}"
ignored=initial-upload-closes-no-bugs options=()
if [ -n "${MAINTAINER:-}" ]; then options=("-DVOLVELLE_MAINTAINER=$MAINTAINER"); else ignored+=,bogus-mail-host; fi
# The compiler's flags are those of every build, so that ccache serves both; nothing is bound while the program runs.
"$make" "$folder" -DCMAKE_BUILD_TYPE=Release -DVOLVELLE_TESTS=OFF -DVOLVELLE_PACKAGE=ON -DCMAKE_INSTALL_PREFIX=/usr \
  "-DCMAKE_INSTALL_LIBDIR=lib/$triple" "${options[@]}" \
  "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-z,relro -Wl,-z,now -Wl,--as-needed" volvelle volvelle_archive
rm -f "$folder"/*.deb
(cd "$folder" && cpack >cpack.log 2>&1) || { tail -n 20 "$folder/cpack.log" >&2; exit 1; }
lintian --allow-root --fail-on error,warning --suppress-tags "$ignored" "$folder"/*.deb >&2
ls "$folder"/*.deb
