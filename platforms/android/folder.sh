#!/bin/bash
# Makes a folder that runs on any 64-bit Arm Linux, Android's among them, from a cross build: the program, every library it
# needs, their loader, and a start script. Of the machine it runs on, it uses the kernel alone.
#
#   platforms/android/folder.sh [BUILD_FOLDER]      (default: build-arm64; makes BUILD_FOLDER/volvelle-arm64)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=${1:-build-arm64}
platforms/arm64/cross.sh "$build" volvelle
folder=$build/volvelle-arm64
rm -rf "$folder"
mkdir -p "$folder/lib"
aarch64-linux-gnu-strip -o "$folder/lib/volvelle" "$build/volvelle"

# What it needs, and what that needs.
libraries=/usr/lib/aarch64-linux-gnu
copied() {  # FILE
  local name
  aarch64-linux-gnu-readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | while read -r name; do
    [ ! -e "$folder/lib/$name" ] || continue
    cp -L "$libraries/$name" "$folder/lib/$name"
    copied "$folder/lib/$name"
  done
}
copied "$folder/lib/volvelle"
cp -L "$libraries/ld-linux-aarch64.so.1" "$folder/lib/"
cat >"$folder/volvelle" <<'START'
#!/bin/sh
# Starts the program with the libraries beside it.
here=$(dirname "$(readlink -f "$0")")
exec "$here/lib/ld-linux-aarch64.so.1" --library-path "$here/lib" "$here/lib/volvelle" "$@"
START
chmod +x "$folder/volvelle"
echo "$folder"
