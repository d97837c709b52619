#!/bin/bash
# Installs what the tests need, builds, and runs every test: all suites in a Release build (build/), those of
# kernels, files, tokenizers and fuzzing again under AddressSanitizer and UBSan (build-sanitize/), and the layout
# of the sources. Ends with the line "N passed, M failed", which counts test cases, and status 1 if any failed.
#
#   tests/run.sh [SUITE...]              only these suites (platforms, kernels, …: folders of tests/), in both builds
#   tests/run.sh --arm64 [SUITE...]      cross-built (build-arm64/), on emulated processors, each with other instructions:
#                                        Cortex-A72, Cortex-A76 (dot product) and Neoverse-N2 (SVE2, i8mm, bf16)
#   tests/run.sh --arm64 --quick         the part of that which takes minutes: kernels and runtime, briefly, and a golden of
#                                        each scheme
#
# --keep-tokens before the suites keeps the quick start's sample and what it says in build/, for --arm64 to compare with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

arm64=0 quick=0 keep=0
[ "${1:-}" = --arm64 ] && { arm64=1; shift; }
[ $arm64 = 1 ] && [ "${1:-}" = --quick ] && { quick=1; shift; }
[ $arm64 = 0 ] && [ "${1:-}" = --keep-tokens ] && { keep=1; shift; }
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
run_suite() {  # FOLDER SUITE [PROCESSOR]
  local log=$1/$2${3:+.$3}.log status=0 counts
  ctest --test-dir "$1" -R "^$2\$" --verbose --timeout 900 --no-tests=error >"$log" 2>&1 || status=$?
  counts=$(awk -v status="$status" '
    /\[doctest\] test cases:/ { cases = 1; gsub(/[^0-9|]/, ""); split($0, n, "|"); p += n[2]; f += n[3] }
    END {
      if (!cases && status == 0) p = 1
      if (status != 0 && f == 0) f = 1
      print p + 0, f + 0
    }' <(sed 's/^[0-9]*: //' "$log"))
  # shellcheck disable=SC2086  # two numbers
  report "$2 (${3:-$1})" $counts
  [ "$status" = 0 ] || { tail -n 80 "$log"; echo "All output is in $log."; }
}

suites_of() {  # FOLDER
  ctest --test-dir "$1" --show-only | awk '/Test +#/ { print $3 }'
}

# The first tokens of the sample that was kept, by the program that the command runs: five over the int8 cache, since the
# sixth is a near tie (0.2 between the two greatest logits of the float model), which rounding decides; eight over a float one.
first_tokens() {  # COMMAND...
  local options=(build/first_tokens.vvl -p "The capital of France is" --ids --ignore-eos -t 1)
  "$@" run "${options[@]}" -n 5
  "$@" run "${options[@]}" -n 8 --kv f32
}

finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
  exit
}

# Cross-built and emulated: QEMU_CPU names the processor.
if [ $arm64 = 1 ]; then
  if [ $quick = 1 ]; then
    only=(platforms kernels runtime arm64 goldens_of_each_scheme)
    export VOLVELLE_BRIEF=1
  fi
  targets=("${only[@]/#/test_}")
  [ ${#only[@]} -gt 0 ] || targets=(all)
  platforms/arm64/cross.sh build-arm64 -DVOLVELLE_TESTS=ON volvelle "${targets[@]%_of_each_scheme}" || {
    report "build-arm64" 0 1
    finish
  }
  for QEMU_CPU in cortex-a72 cortex-a76 neoverse-n2; do
    export QEMU_CPU
    for suite in $(suites_of build-arm64); do
      if wanted "$suite"; then run_suite build-arm64 "$suite" "$QEMU_CPU"; fi
    done
    if [ ! -e build/first_tokens.txt ]; then
      echo "first tokens ($QEMU_CPU): not compared; tests/run.sh --keep-tokens keeps some"
    elif [ "$(first_tokens qemu-aarch64-static build-arm64/volvelle)" = "$(cat build/first_tokens.txt)" ]; then
      report "first tokens ($QEMU_CPU)" 1 0
    else
      report "first tokens ($QEMU_CPU)" 0 1
    fi
  done
  finish
fi

platforms/debian/packages.sh build sample tests

if platforms/debian/build.sh build -DCMAKE_BUILD_TYPE=Release -DVOLVELLE_TESTS=ON "${only[@]/#/test_}"; then
  for suite in $(suites_of build); do
    if wanted "$suite"; then run_suite build "$suite"; fi
  done
else
  report "build" 0 1
fi

if [ $keep = 1 ]; then
  cp "${XDG_CACHE_HOME:-$HOME/.cache}"/volvelle/SmolLM2*.vvl build/first_tokens.vvl
  first_tokens build/volvelle >build/first_tokens.txt
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

finish
