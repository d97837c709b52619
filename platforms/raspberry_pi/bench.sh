#!/bin/bash
# Measures models on the board at hand and writes a report that can be compared and posted: volvelle-bench.json and
# volvelle-bench.md.
#
#   platforms/raspberry_pi/bench.sh [--llama FILE.gguf] [MODEL.vvl...]
#
#   MODEL.vvl   what to measure, at best of 135 M, 0.5 B and 1 B weights (default: the quick start's sample)
#   --llama     measures this checkpoint with llama-bench, where that is installed, after the model at the same place of
#               the list; may be given several times
#
# $VOLVELLE names the program (default: build/volvelle, else volvelle). $REPEATS (default 5), $PROMPT (512), $TOKENS (128)
# and $DEPTHS (0,4096) say how much is measured.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
volvelle=${VOLVELLE:-$here/build/volvelle}
[ -x "$volvelle" ] || volvelle=$(command -v volvelle) || {
  echo "bench.sh: volvelle is not built; run platforms/debian/quickstart.sh" >&2
  exit 1
}
models=() ggufs=()
while [ $# -gt 0 ]; do
  case $1 in
    --llama) ggufs+=("${2:?bench.sh: --llama needs a file}"); shift 2 ;;
    -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; exit ;;
    *) models+=("$1"); shift ;;
  esac
done
if [ ${#models[@]} = 0 ]; then
  for model in "${XDG_CACHE_HOME:-$HOME/.cache}"/volvelle/*.vvl; do
    [ -e "$model" ] && models+=("$model")
  done
fi
[ ${#models[@]} -gt 0 ] || { echo "bench.sh: name a model (.vvl), or run platforms/debian/quickstart.sh first" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read_line() { [ ! -r "$1" ] || tr -d '\0' <"$1" | head -n 1; }
throttled() { vcgencmd get_throttled 2>/dev/null | sed 's/^throttled=//' || true; }
{
  board=$(read_line /proc/device-tree/model)
  echo "board=${board:-$(read_line /sys/class/dmi/id/product_name)}"
  echo "kernel=$(uname -srm)"
  echo "governor=$(read_line /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor)"
  for device in /sys/class/thermal/cooling_device*; do
    [ ! -e "$device/type" ] || echo "cooling=$(read_line "$device/type")"
  done
  echo "throttled_before=$(throttled)"
} >"$work/board"
i=0
for model in "${models[@]}"; do
  echo "== $model" >&2
  "$volvelle" bench "$model" -p "${PROMPT:-512}" -n "${TOKENS:-128}" -d "${DEPTHS:-0,4096}" -r "${REPEATS:-5}" --json \
    >"$work/$i.json"
  if [ -n "${ggufs[i]:-}" ] && command -v llama-bench >/dev/null; then
    llama-bench -m "${ggufs[i]}" -p "${PROMPT:-512}" -n "${TOKENS:-128}" -d "${DEPTHS:-0,4096}" -r "${REPEATS:-5}" -o json \
      >"$work/$i.llama"
  fi
  i=$((i + 1))
done
echo "throttled_after=$(throttled)" >>"$work/board"

python3 - "$work" "$i" <<'PYTHON'
import json, os, sys

work, count = sys.argv[1], int(sys.argv[2])
board = {}
for line in open(f"{work}/board"):
    name, value = line.rstrip("\n").split("=", 1)
    if name == "cooling":
        board.setdefault(name, []).append(value)
    elif value:
        board[name] = value
runs = []
for i in range(count):
    run = json.load(open(f"{work}/{i}.json"))
    if os.path.exists(f"{work}/{i}.llama"):
        run["llama_bench"] = json.load(open(f"{work}/{i}.llama"))
    runs.append(run)
json.dump({"board": board, "runs": runs}, open("volvelle-bench.json", "w"), indent=1)

# What a board could give at most. A Pi 5's are predictions: 10 of 17 GB/s, and 4 cores x 2.4 GHz x 64 operations a cycle.
predicted = {"Raspberry Pi 5": (10e9, 614e9)}
limits = next((v for k, v in predicted.items() if k in board.get("board", "")), None)

def llama(run, kind, tokens, depth):
    for row in run.get("llama_bench", []):
        wanted = row["n_prompt"] if kind == "prefill" else row["n_gen"]
        if wanted == tokens and row.get("n_depth", 0) == depth:
            return f'{row["avg_ts"]:.1f}'
    return ""

with open("volvelle-bench.md", "w") as out:
    out.write("# Volvelle on " + board.get("board", "an unnamed board") + "\n\n")
    for name, value in board.items():
        out.write(f"- {name}: {', '.join(value) if isinstance(value, list) else value}\n")
    for run in runs:
        machine = run["machine"]
        out.write(f'\n## {os.path.basename(run["model"])}\n\n{machine["cpu"]}, {run["threads"]} threads, cache {run.get("kv")}; '
                  f'reads {machine["read_gb_per_s"]:.1f} GB/s, {machine["int8_gops"]:.0f} int8 GOPS (measured)')
        if limits:
            out.write(f"; predicted {limits[0] / 1e9:.0f} GB/s usable and {limits[1] / 1e9:.0f} GOPS")
        heat = [f'{machine[k]:.1f} {unit}' for k, unit in (("temperature_most_c", "°C at most"),
                                                            ("clock_least_ghz", "GHz at least")) if k in machine]
        out.write("; ".join([""] + heat) + ".\n")
        if machine.get("throttled"):
            out.write(f'\n**Throttled: {machine["throttled"]}. These are not its full speeds.**\n')
        out.write("\n| | tokens | depth | tokens/s | least | most | of the measured limit |"
                  + (" of the predicted |" if limits else "") + " llama-bench |\n|---|---|---|---|---|---|---|"
                  + ("---|" if limits else "") + "---|\n")
        for r in run["results"]:
            speed, fraction = r["tokens_per_s"], r["fraction_of_limit"]
            row = [r["kind"], r["tokens"], r["depth"], f'{speed["median"]:.1f}', f'{speed["min"]:.1f}',
                   f'{speed["max"]:.1f}', f"{100 * fraction:.0f} %"]
            if limits:
                measured = machine["read_gb_per_s"] * 1e9 if r["kind"] == "decode" else machine["int8_gops"] * 1e9
                row.append(f'{100 * fraction * measured / limits[0 if r["kind"] == "decode" else 1]:.0f} %')
            row.append(llama(run, r["kind"], r["tokens"], r["depth"]))
            out.write("| " + " | ".join(map(str, row)) + " |\n")
print("volvelle-bench.md and volvelle-bench.json are written")
PYTHON
