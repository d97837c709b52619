#!/bin/bash
# Estimates what the inner loops of kernels cost on Arm cores that are not at hand: takes them out of a cross build and
# lets llvm-mca schedule them. Prints cycles an element, the same at the limit of the core's ports, and their quotient.
#
#   tests/bench/mca.sh [BUILD_FOLDER]      (default: build-arm64, see platforms/arm64/cross.sh)
#
# Estimates and no measurements: memory, branches and the end of rows cost nothing here. LLVM 19 schedules a Cortex-A76 by
# its model of Cortex-A57, which has fewer ports; neoverse-n1, the same core as the A76 for servers, has one of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build-arm64}
objdump=$(command -v aarch64-linux-gnu-objdump || command -v objdump)
mca=$(command -v llvm-mca llvm-mca-{22..14} | head -n 1) || { echo "mca.sh: llvm-mca is missing; install llvm" >&2; exit 1; }

# Prints the innermost loop of the functions that match, the one with most instructions like `work`; exits 3 without one.
loop_of() {  # OBJECT FUNCTION WORK
  "$objdump" -dC --no-show-raw-insn "$build/kernels/CMakeFiles/volvelle_kernels.dir/$1.cc.o" |
    awk -F'\t' -v function_name="$2" -v work="$3" '
      function close_function(  i, j, from, to, inner, hits, line) {
        for (i = 1; i <= n; i++) {
          if (code[i] !~ /^(b\.|cb|tb|b )/ || match(code[i], /[0-9a-f]+ </) == 0) continue
          target = substr(code[i], RSTART, RLENGTH - 2)
          if (!(target in at) || at[target] >= i) continue
          from = at[target]; to = i; inner = 0; hits = 0
          for (j = from; j < to; j++) {
            if (code[j] ~ work) hits++
            if (code[j] ~ /^(b\.|cb|tb|b )/ && match(code[j], /[0-9a-f]+ </)) {
              target = substr(code[j], RSTART, RLENGTH - 2)
              if ((target in at) && at[target] < j) inner = 1
            }
          }
          if (inner || hits <= most) continue
          most = hits; best = ".L0:\n"
          for (j = from; j <= to; j++) {
            line = code[j]
            sub(/ *\/\/.*/, "", line)
            sub(/[0-9a-f]+ <.*>/, ".L0", line)
            best = best line "\n"
          }
        }
        n = 0; delete at; delete code
      }
      /^[0-9a-f]+ </ { close_function(); inside = index($0, function_name) > 0; next }
      inside && NF >= 2 {
        address = $1; gsub(/[ :]/, "", address)
        code[++n] = $2 (NF > 2 ? " " $3 : ""); at[address] = n
      }
      END { close_function(); if (!most) exit 3; printf "%s", best }'
}

estimate() {  # NAME OBJECT FUNCTION WORK ELEMENTS_PER_WORK
  local loop count cpu
  loop=$(loop_of "$2" "$3" "$4") || { echo "mca.sh: $1: its loop was not found" >&2; status=1; return; }
  count=$(grep -cE "$4" <<<"$loop")
  for cpu in $cores; do
    "$mca" -mtriple=aarch64 -mcpu="$cpu" -mattr=+dotprod -iterations=1000 <<<"$loop" |
      awk -v name="$1" -v cpu="$cpu" -v elements=$((count * $5)) '
        /^Total Cycles/ { cycles = $3 / 1000 }
        /^Block RThroughput/ { limit = $3 }
        END {
          printf "%-26s %-12s %9.3f %9.3f %8.2f %s\n", name, cpu, cycles / elements, limit / elements,
                 cycles / limit, (cycles > 1.3 * limit ? "*" : "")
        }'
  done
}

status=0
printf '%-26s %-12s %9s %9s %8s\n' "cycles an element" core loop ports quotient
cores="neoverse-n1 cortex-a76 cortex-a72"
attend=N_DOT_PRODUCT::Attending\<signed\ char\>::run
estimate "q.k int8, 2 rows" attention_dot_product "$attend(" '^sdot' 16
estimate "q.k int8, 4 rows" attention_dot_product "${attend}_rows<4ul>" '^sdot' 16
estimate "p.v int8, 2 rows" attention_dot_product "$attend(" '^udot' 16
estimate "p.v int8, 4 rows" attention_dot_product "${attend}_rows<4ul>" '^udot' 16
cores=cortex-a72  # the others have it
estimate "q.k int8, no dot product" attention "N_NEON_WITHOUT_AES::Attending<signed char>::run_rows<4ul>" '^sadalp' 16
estimate "p.v int8, no dot product" attention "N_NEON_WITHOUT_AES::Attending<signed char>::run_rows<4ul>" '^umull2' 16
cores="neoverse-n1 cortex-a76 cortex-a72"
estimate "rotate" rotary "N_NEON_WITHOUT_AES::rotate(" '^st[rp] q' 4
estimate "RMS norm, squares" norm "N_NEON_WITHOUT_AES::rms_norm(" '^fmla' 4
estimate "RMS norm, scaling" norm "N_NEON_WITHOUT_AES::rms_norm(" '^st[rp] q' 4
estimate "quantise, rotating" quantize "N_NEON_WITHOUT_AES::transform_and_measure(" '^fmax' 4
estimate "quantise, codes" quantize "N_NEON_WITHOUT_AES::quantize_unsigned(" '^fadd' 4
exit $status
