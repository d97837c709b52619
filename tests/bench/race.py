"""Times decoders of one checkpoint in several runtimes; see race.sh.

In a round every contestant is run once, so that what disturbs the machine disturbs them alike, and
what is printed of each is the median of the rounds, with the least and the greatest. A peer's best
setting of those tried stands for it. Ratios are of medians; a ratio below 1 is a loss.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PREFILL, DECODE = 512, 64
SYMMETRIC = "q4 symmetric"

CTRANSLATE2 = """
import json, sys, time
import ctranslate2
folder, threads, prefill, decode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
generator = ctranslate2.Generator(folder, inter_threads=1, intra_threads=threads, compute_type="int8")
ids = [100 + i % 5000 for i in range(prefill)]
vocabulary = json.load(open(folder + "/vocabulary.json"))
tokens = [vocabulary[i] for i in ids]
generator.forward_batch([tokens])
start = time.monotonic(); generator.forward_batch([tokens]); read = time.monotonic() - start
def generate(count):
    start = time.monotonic()
    generator.generate_batch([tokens[:1]], max_length=count + 1, min_length=count + 1, sampling_topk=1,
                             include_prompt_in_result=False)
    return time.monotonic() - start
generate(4)
written = generate(decode + 4) - generate(4)
print(json.dumps({"version": ctranslate2.__version__, "prefill": prefill / read, "decode": decode / written}))
"""


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"race: {command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def numbers(text):
    return [int(part) for part in text.split(",")]


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


class Volvelle:
    """One .vvl file of the program under test."""

    def __init__(self, program, checkpoint, name, context, folder):
        self.name, self.program = f"Volvelle {name}", program
        self.file = folder / f"{name.replace(' ', '-')}.vvl"
        options = ["--context", context] if context else []
        if name == SYMMETRIC:  # as a q4_0 is: no minima of blocks, no inputs that are not rounded
            options += ["--no-keep-grid", "--calibrate", "none"]
        run([program, "convert", checkpoint, "--weights", name.split()[0], "-o", self.file, *options])
        self.version = run([program, "--version"]).strip()

    def measure(self, threads, depths):
        output = run([self.program, "bench", self.file, "-t", threads, "-r", 1, "-p", PREFILL, "-n", DECODE,
                      "-d", ",".join(map(str, depths)), "--json"])
        return {(result["kind"], result["depth"]): result["tokens_per_s"]["median"]
                for result in json.loads(output)["results"]}


class LlamaCpp:
    """One quantisation and one setting of flash attention and cache of llama-bench."""

    def __init__(self, file, weights, flash, cache):
        self.name = f"llama.cpp {weights}, fa {flash}, {cache} cache"
        self.peer = f"llama.cpp {weights}"
        self.rival = {"q4_0": SYMMETRIC, "q8_0": "q8"}[weights]
        self.file, self.flash, self.cache, self.version = file, flash, cache, "llama.cpp"

    def measure(self, threads, depths):
        found = {}
        for depth in depths:
            output = run(["llama-bench", "-m", self.file, "-t", threads, "-r", 1, "-p", PREFILL, "-n", DECODE,
                          "-d", depth, "-fa", self.flash, "-ctk", self.cache, "-ctv", self.cache, "-o", "json"])
            for result in json.loads(output):
                kind = "prefill" if result["n_prompt"] else "decode"
                found[kind, depth] = result["avg_ts"]
                self.version = f"llama.cpp {result['build_number']} ({result['build_commit']})"
        return found


class CTranslate2:
    """The int8 conversion of a Hugging Face folder; without depths, which it cannot be asked for."""

    def __init__(self, python, source, folder):
        self.name = self.peer = "CTranslate2 int8"
        self.rival, self.python, self.folder, self.version = "q8", python, folder / "ctranslate2", "CTranslate2"
        converter = Path(python).parent / "ct2-transformers-converter"
        run([converter, "--model", source, "--output_dir", self.folder, "--quantization", "int8"])
        # It refuses what it has written itself where the tokenizer names no such token.
        path, words = self.folder / "config.json", json.loads((self.folder / "vocabulary.json").read_text())
        config = json.loads(path.read_text())
        path.write_text(json.dumps({key: words[0] if value is None else value for key, value in config.items()}))

    def measure(self, threads, depths):
        if 0 not in depths:
            return {}
        result = json.loads(run([self.python, "-c", CTRANSLATE2, self.folder, threads, PREFILL, DECODE]))
        self.version = f"CTranslate2 {result['version']}"
        return {("prefill", 0): result["prefill"], ("decode", 0): result["decode"]}


def contestants(options, folder):
    deepest = max(options.depths) + PREFILL + DECODE
    context = deepest if deepest > options.context else 0
    found = [Volvelle(options.volvelle, options.checkpoint, weights, context, folder) for weights in ("q4", SYMMETRIC, "q8")]
    if shutil.which("llama-bench") and shutil.which("llama-quantize"):
        for weights in ("q4_0", "q8_0"):
            file = folder / f"{weights}.gguf"
            run(["llama-quantize", "--allow-requantize", "--token-embedding-type", "q8_0", options.checkpoint, file,
                 weights, os.cpu_count()])
            for flash, cache in (("0", "f16"), ("1", "f16"), ("1", "q8_0")):
                found.append(LlamaCpp(file, weights, flash, cache))
    else:
        print("llama.cpp takes no part: llama-bench and llama-quantize are not on PATH", file=sys.stderr)
    if options.python and options.folder:
        if subprocess.run([options.python, "-c", "import ctranslate2"], capture_output=True).returncode == 0:
            found.append(CTranslate2(options.python, options.folder, folder))
        else:
            print(f"CTranslate2 takes no part: {options.python} has no package of it", file=sys.stderr)
    else:
        print("CTranslate2 takes no part: it needs --python and --folder", file=sys.stderr)
    return found


def best_settings(racers, times):
    """Of several settings of a peer, for each figure the fastest: {(peer, figure): times}."""
    best = {}
    for racer in racers:
        peer = getattr(racer, "peer", racer.name)
        for figure, values in times[racer.name].items():
            if (peer, figure) not in best or statistics.median(values) > statistics.median(best[peer, figure]):
                best[peer, figure] = values
    return best


def table(racers, best, figures, rivals):
    peers = sorted({peer for peer, _ in best}, key=lambda peer: (not peer.startswith("Volvelle"), peer))
    lines = ["| | " + " | ".join(peers) + " | " + " | ".join(f"{v} : {p}" for v, p in rivals) + " |",
             "|---" * (1 + len(peers) + len(rivals)) + "|"]
    for figure in figures:
        threads, kind, depth = figure
        cells = [f"{kind}, depth {depth}, {threads} thread{'s' if threads > 1 else ''}"]
        for peer in peers:
            values = best.get((peer, figure))
            cells.append("–" if not values else
                         f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})")
        for ours, theirs in rivals:
            pair = [best.get((ours, figure)), best.get((theirs, figure))]
            cells.append("–" if None in pair else
                         f"**{statistics.median(pair[0]) / statistics.median(pair[1]):.2f}**")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def drawing(best, figures):
    """Bars of every figure, each figure to its own scale."""
    colours = ["#0b6e4f", "#53b987", "#8a8a8a", "#b5b5b5", "#6d7fa8", "#a8b4d0"]
    peers = sorted({peer for peer, _ in best}, key=lambda peer: (not peer.startswith("Volvelle"), peer))
    height, parts, y = 16, [], 10
    for figure in figures:
        values = [(i, peer, statistics.median(best[peer, figure])) for i, peer in enumerate(peers)
                  if (peer, figure) in best]
        most = max(value for _, _, value in values)
        threads, kind, depth = figure
        y += 22
        parts.append(f'<text x="10" y="{y - 6}" font-weight="bold">{kind}, depth {depth}, {threads} '
                     f'thread{"s" if threads > 1 else ""} (tokens/s)</text>')
        for i, peer, value in values:
            parts.append(f'<text x="170" y="{y + 12}" text-anchor="end">{peer}</text>'
                         f'<rect x="178" y="{y}" width="{400 * value / most:.1f}" height="{height - 3}" '
                         f'fill="{colours[i % len(colours)]}"/>'
                         f'<text x="{184 + 400 * value / most:.1f}" y="{y + 12}">{value:.0f}</text>')
            y += height
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="660" height="{y + 10}" font-family="sans-serif" '
            f'font-size="12">' + "".join(parts) + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(prog="race.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--volvelle", default="build/volvelle")
    parser.add_argument("--threads", type=numbers, default=[1])
    parser.add_argument("--depths", type=numbers, default=[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=8192, help="the checkpoint's own (default 8192)")
    parser.add_argument("--folder", help="the same checkpoint as a Hugging Face folder")
    parser.add_argument("--python", help="a Python that has peers as packages")
    parser.add_argument("-o", "--output", type=Path, default=Path("."))
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        racers = contestants(options, Path(name))
        times = {racer.name: {} for racer in racers}
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            for racer in racers:
                for threads in options.threads:
                    for (kind, depth), speed in racer.measure(threads, options.depths).items():
                        times[racer.name].setdefault((threads, kind, depth), []).append(speed)

    best = best_settings(racers, times)
    figures = [(threads, kind, depth) for threads in options.threads for depth in options.depths
               for kind in ("prefill", "decode")]
    rivals = sorted({(f"Volvelle {racer.rival}", racer.peer) for racer in racers if hasattr(racer, "peer")})
    versions = sorted({racer.version for racer in racers})
    lines = [f"{options.checkpoint.name} on {processor()}, {os.cpu_count()} cores, {platform.system()} "
             f"{platform.release()}: tokens a second, prefill of {PREFILL} and decode of {DECODE} tokens, median "
             f"(least-greatest) of {options.rounds} interleaved rounds; of each peer its fastest setting.", "",
             *table(racers, best, figures, rivals), "", "Versions: " + ", ".join(versions) + "."]
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "race.md").write_text("\n".join(lines) + "\n")
    (options.output / "race.svg").write_text(drawing(best, figures))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
