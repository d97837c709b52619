#!/bin/bash
# Configures a build folder below the repository's root and builds in it; ccache is used where it is installed.
#
#   platforms/debian/build.sh FOLDER [-DOPTION=VALUE...] [TARGET...]
#
# The compiler's output goes to FOLDER/build.log; the end of it is shown if something fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=${1:?build.sh: name a folder}
shift
options=() targets=()
for argument; do
  case $argument in
    -D*) options+=("$argument") ;;
    *) targets+=(--target "$argument") ;;
  esac
done
# A folder keeps the generator that it was made with.
[ -e "$folder/CMakeCache.txt" ] || options+=(-G Ninja)
# Stated each time: the folder may remember a ccache that is gone.
launcher=$(command -v ccache >/dev/null && echo ccache) || launcher=
options+=("-DCMAKE_C_COMPILER_LAUNCHER=$launcher" "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher")
export CCACHE_BASEDIR=$PWD  # so that one build folder's results serve another

# Some of our files take a gigabyte to compile.
jobs=$(nproc)
gigabytes=$(awk '/^MemTotal:/ { print int($2 / 1000000) }' /proc/meminfo)
[ "$jobs" -le "$gigabytes" ] || jobs=$((gigabytes > 0 ? gigabytes : 1))

mkdir -p "$folder"
log=$folder/build.log
echo "Building in $folder/ with $jobs jobs" >&2
{ cmake -S . -B "$folder" "${options[@]}" && cmake --build "$folder" -j "$jobs" "${targets[@]}"; } >"$log" 2>&1 || {
  grep -nE 'error|Error|FAILED' "$log" | head -n 20 >&2 || true
  tail -n 30 "$log" >&2
  echo "The build failed; all of its output is in $folder/build.log." >&2
  exit 1
}
