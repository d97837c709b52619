#!/bin/bash
# Installs what the tests need, builds, and runs every test: all suites in a Release build (build/), those of
# kernels, files, tokenizers and fuzzing again under AddressSanitizer and UBSan (build-sanitize/), and the layout
# of the sources. Ends with the line "N passed, M failed", which counts test cases, and status 1 if any failed.
#
#   tests/run.sh [SUITE...]      only these suites (platforms, kernels, …: folders of tests/), in both builds
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' tests/run.sh; exit ;;
  -*) echo "run.sh: $1 is no suite; see --help" >&2; exit 2 ;;
esac

sanitized=(kernels platforms sources tokenizer fuzz)
only=("$@")
passed=0 failed=0

report() {  # NAME PASSED FAILED
  passed=$((passed + $2)) failed=$((failed + $3))
  printf '%-28s %5d passed, %d failed\n' "$1" "$2" "$3"
}

wanted() {  # SUITE
  [ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $1 "* ]]
}

# Runs one suite and counts its test cases; a suite that ends without telling its cases counts as one.
run_suite() {  # FOLDER SUITE
  local log=$1/$2.log status=0 counts
  ctest --test-dir "$1" -R "^$2\$" --verbose --timeout 900 --no-tests=error >"$log" 2>&1 || status=$?
  counts=$(awk -v status="$status" '
    /\[doctest\] test cases:/ { cases = 1; gsub(/[^0-9|]/, ""); split($0, n, "|"); p += n[2]; f += n[3] }
    END {
      if (!cases && status == 0) p = 1
      if (status != 0 && f == 0) f = 1
      print p + 0, f + 0
    }' <(sed 's/^[0-9]*: //' "$log"))
  # shellcheck disable=SC2086  # two numbers
  report "$2 ($1)" $counts
  [ "$status" = 0 ] || { tail -n 80 "$log"; echo "All output is in $log."; }
}

suites_of() {  # FOLDER
  ctest --test-dir "$1" --show-only | awk '/Test +#/ { print $3 }'
}

platforms/debian/packages.sh build sample tests

if platforms/debian/build.sh build -DCMAKE_BUILD_TYPE=Release -DVOLVELLE_TESTS=ON "${only[@]/#/test_}"; then
  for suite in $(suites_of build); do
    if wanted "$suite"; then run_suite build "$suite"; fi
  done
else
  report "build" 0 1
fi

suites=() targets=()
for suite in "${sanitized[@]}"; do
  if [ -e "tests/$suite/CMakeLists.txt" ] && wanted "$suite"; then
    suites+=("$suite") targets+=("test_$suite")
  fi
done
if [ ${#suites[@]} -gt 0 ]; then
  if platforms/debian/build.sh build-sanitize -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS=-O1 -g1" \
    -DVOLVELLE_SANITIZE=address,undefined -DVOLVELLE_TESTS=ON "${targets[@]}"; then
    for suite in "${suites[@]}"; do run_suite build-sanitize "$suite"; done
  else
    report "build-sanitize" 0 1
  fi
fi

if [ ${#only[@]} = 0 ]; then
  if find . \( -path './build*' -o -path './.*' \) -prune -o \( -name '*.cc' -o -name '*.h' \) -print0 |
    xargs -0 clang-format --dry-run -Werror; then
    report "layout" 1 0
  else
    report "layout (clang-format -i)" 0 1
  fi
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
