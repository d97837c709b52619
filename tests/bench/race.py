"""Times decoders of one checkpoint in several runtimes; see race.sh.

In a round every contestant is run once, so that what disturbs the machine disturbs them alike, and
what is printed of each is the median of the rounds, with the least and the greatest. A peer's best
setting of those tried stands for it; one that was far from it in the first round is not run again.
Ratios are of medians; a ratio below 1 is a loss.
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
CONTEXT = 17408  # at least, of what peers prepare for one: a preparation then serves most races
HOPELESS = 0.8  # of a peer's best setting: below that in both figures a setting is not run again
HERE = Path(__file__).parent

CTRANSLATE2_CONVERT = """
import sys
from ctranslate2.converters.transformers import MPTLoader, TransformersConverter, register_loader
register_loader("MptConfig")(MPTLoader)  # what transformers calls it since it has the model itself
TransformersConverter(sys.argv[1]).convert(sys.argv[2], quantization="int8")
"""

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


class Failure(Exception):
    """A program that did not do what it was asked for."""


def run(command):
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    except OSError as error:
        raise Failure(str(error)) from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()
        raise Failure(f"{Path(command[0]).name}: {said[-1][:200]}")
    return done.stdout


def prepared(path, make):
    """The file or folder at `path`; `make` writes it under the name it is given if it is not there."""
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        print(f"preparing {path.name}", file=sys.stderr)
        make(partial)
        partial.rename(path)
    return path


def last_line(text):
    """What a script of ours prints, after whatever its libraries have printed before."""
    return json.loads(text.strip().splitlines()[-1])


def numbers(text):
    return [int(part) for part in text.split(",")]


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


class Volvelle:
    """One .vvl file of the program under test, converted anew in every race."""

    def __init__(self, program, checkpoint, name, context, folder):
        self.name, self.program, self.fractions = f"Volvelle {name}", program, {}
        self.file = folder / f"{name.replace(' ', '-')}.vvl"
        options = ["--context", context] if context else []
        if name == SYMMETRIC:  # as a q4_0 is: no minima of blocks, no inputs that are not rounded
            options += ["--no-keep-grid", "--calibrate", "none"]
        print(f"preparing {self.file.name}", file=sys.stderr)
        run([program, "convert", checkpoint, "--weights", name.split()[0], "-o", self.file, "--force", *options])
        self.version = run([program, "--version"]).strip()

    def measure(self, threads, depths):
        output = run([self.program, "bench", self.file, "-t", threads, "-r", 1, "-p", PREFILL, "-n", DECODE,
                      "-d", ",".join(map(str, depths)), "--json"])
        found = {}
        for result in json.loads(output)["results"]:
            kind, depth = result["kind"], result["depth"]
            found[kind, depth] = result["tokens_per_s"]["median"]
            self.fractions.setdefault((threads, kind, depth), []).append(result["fraction_of_limit"])
        return found


class LlamaCpp:
    """One quantisation and one setting of flash attention and cache of llama-bench."""

    def __init__(self, checkpoint, weights, flash, cache, folder):
        self.name = f"llama.cpp {weights}, fa {flash}, {cache} cache"
        self.peer = f"llama.cpp {weights}"
        self.rival = {"q4_0": SYMMETRIC, "q8_0": "q8"}[weights]
        self.flash, self.cache, self.version = flash, cache, "llama.cpp"
        self.file = prepared(folder / f"{weights}.gguf", lambda path: run(
            ["llama-quantize", "--allow-requantize", "--token-embedding-type", "q8_0", checkpoint, path, weights,
             os.cpu_count()]))

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
        self.rival, self.python, self.version = "q8", python, "CTranslate2"
        self.folder = prepared(folder / "ctranslate2", lambda path: self.convert(source, path))

    def convert(self, source, target):
        run([self.python, "-c", CTRANSLATE2_CONVERT, source, target])
        # It refuses nulls that it has written itself: a token the tokenizer does not name, a number.
        path, words = target / "config.json", json.loads((target / "vocabulary.json").read_text())
        config = json.loads(path.read_text())
        named = {key: words[0] for key, value in config.items() if value is None and key.endswith("_token")}
        told = {key: value for key, value in config.items() if value is not None}
        path.write_text(json.dumps({**told, **named}))

    def measure(self, threads, depths):
        if 0 not in depths:
            return {}
        result = json.loads(run([self.python, "-c", CTRANSLATE2, self.folder, threads, PREFILL, DECODE]))
        self.version = f"CTranslate2 {result['version']}"
        return {("prefill", 0): result["prefill"], ("decode", 0): result["decode"]}


class ExecuTorch:
    """A Hugging Face folder exported for XNNPACK with int4 weights, those of the head too."""

    CONTEXT = 4096 + PREFILL + DECODE  # a mask of its square for each layer: 17408 take over 20 GB to export

    def __init__(self, python, source, folder):
        self.name = self.peer = "ExecuTorch 8da4w"
        self.rival, self.version = SYMMETRIC, "ExecuTorch"
        self.command = [python, HERE / "executorch_peer.py"]
        self.file = prepared(folder / f"executorch-{self.CONTEXT}.pte", lambda path: run(
            [*self.command, "export", source, path, "--context", self.CONTEXT, "--prefill", PREFILL]))

    def measure(self, threads, depths):
        depths = [depth for depth in depths if depth + PREFILL + DECODE <= self.CONTEXT]
        if not depths:
            return {}
        result = last_line(run([*self.command, "time", self.file, "--threads", threads, "--prefill", PREFILL,
                                "--decode", DECODE, "--depths", ",".join(map(str, depths))]))
        self.version = result["version"]
        return {(kind, depth): speed for kind, depth, speed in result["figures"]}


class OnnxRuntime:
    """A Hugging Face folder exported by onnxruntime's model builder with what it advises for a CPU:
    linears as MatMulNBits, symmetric, a scale to 32, inputs rounded to int8 as they come; an int8
    head of which one row is computed; its own operator for attention, with a cache in float."""

    def __init__(self, python, source, weights, context, folder):
        self.name = self.peer = f"onnxruntime {weights}"
        self.rival = {"int4": SYMMETRIC, "int8": "q8"}[weights]
        self.python, self.context, self.version = python, context, "onnxruntime"
        self.folder = prepared(folder / f"onnxruntime-{weights}-{context}",
                               lambda path: self.build(source, path, weights))

    def build(self, source, target, weights):
        with tempfile.TemporaryDirectory() as name:
            longer = Path(name)  # the same folder for the context of this race
            for file in Path(source).iterdir():
                (longer / file.name).symlink_to(file.resolve())
            config = json.loads((longer / "config.json").read_text())
            positions = max(self.context, config.get("max_position_embeddings", 0))
            (longer / "config.json").unlink()
            (longer / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
            run([self.python, "-m", "onnxruntime_genai.models.builder", "-i", longer, "-o", target, "-p", weights,
                 "-e", "cpu", "-c", longer / "cache", "--extra_options", "block_size=32", "accuracy_level=4",
                 "is_symmetric=true", "matmul_mixed_precision=last_matmul:int8", "prune_lm_head=true",
                 "shared_embeddings=false", "hf_token=false"])

    def measure(self, threads, depths):
        result = last_line(run([self.python, HERE / "onnxruntime_peer.py", self.folder, "--threads", threads,
                                "--context", self.context, "--prefill", PREFILL, "--decode", DECODE,
                                "--depths", ",".join(map(str, depths))]))
        self.version = result["version"]
        return {(kind, depth): speed for kind, depth, speed in result["figures"]}


def peers(options, context, folder):
    """Every peer setting that can take part; of the others is printed why they cannot."""
    makers = []
    if shutil.which("llama-bench") and shutil.which("llama-quantize"):
        for weights in ("q4_0", "q8_0"):
            for flash, cache in (("0", "f16"), ("1", "f16"), ("1", "q8_0")):
                makers.append((f"llama.cpp {weights}", lambda setting=(weights, flash, cache):
                               LlamaCpp(options.checkpoint, *setting, folder)))
    else:
        print("llama.cpp takes no part: llama-bench and llama-quantize are not on PATH", file=sys.stderr)
    python, source = options.python, options.folder
    packages = {
        "ctranslate2": [("CTranslate2", lambda: CTranslate2(python, source, folder))],
        "executorch": [("ExecuTorch", lambda: ExecuTorch(python, source, folder))],
        "onnxruntime_genai": [(f"onnxruntime {form}", lambda form=form:
                               OnnxRuntime(python, source, form, context, folder)) for form in ("int4", "int8")],
    }
    for package, settings in packages.items():
        if not python or not source:
            print(f"{settings[0][0].split()[0]} takes no part: it needs --python and --folder", file=sys.stderr)
        elif subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode != 0:
            print(f"{settings[0][0].split()[0]} takes no part: {python} has no package {package}", file=sys.stderr)
        else:
            makers += settings
    found = []
    for name, make in makers:
        try:
            found.append(make())
        except Failure as failure:
            print(f"{name} takes no part: {failure}", file=sys.stderr)
    return found


def own_context(options):
    """The positions that the checkpoint is made for, if its folder tells."""
    if options.context or not options.folder:
        return options.context or 8192
    config = json.loads((Path(options.folder) / "config.json").read_text())
    return config.get("max_position_embeddings") or config.get("max_seq_len") or 8192


def contestants(options, folder):
    deepest = max(options.depths) + PREFILL + DECODE
    context = deepest if deepest > own_context(options) else 0
    # Random weights lie on no grid of four bits: q4 would be the symmetric form once more.
    forms = (SYMMETRIC, "q8") if options.shape else ("q4", SYMMETRIC, "q8")
    return [*(Volvelle(options.volvelle, options.checkpoint, form, context, folder) for form in forms),
            *peers(options, max(deepest, CONTEXT), folder)]


def race(options, racers):
    """{name: {figure: speeds}} of all rounds, a figure being (threads, kind, depth)."""
    times = {racer.name: {} for racer in racers}
    out = set()  # (name, threads, depth) that are not run again
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for racer in racers:
            for threads in options.threads:
                depths = [depth for depth in options.depths if (racer.name, threads, depth) not in out]
                if not depths:
                    continue
                try:
                    speeds = racer.measure(threads, depths)
                except Failure as failure:
                    if isinstance(racer, Volvelle):
                        raise
                    print(f"{racer.name} leaves the race with {threads} threads: {failure}", file=sys.stderr)
                    out |= {(racer.name, threads, depth) for depth in options.depths}
                    continue
                for (kind, depth), speed in speeds.items():
                    times[racer.name].setdefault((threads, kind, depth), []).append(speed)
        if number == 0:
            best = best_settings(racers, times)
            for racer in racers:
                shares = {}
                for figure, speeds in times[racer.name].items():
                    threads, _, depth = figure
                    share = speeds[0] / best[getattr(racer, "peer", racer.name), figure][0]
                    shares.setdefault((racer.name, threads, depth), []).append(share)
                out |= {setting for setting, both in shares.items() if max(both) < HOPELESS}
    return times


def best_settings(racers, times):
    """Of several settings of a peer, for each figure the fastest: {(peer, figure): times}."""
    best = {}
    for racer in racers:
        peer = getattr(racer, "peer", racer.name)
        for figure, values in times[racer.name].items():
            if (peer, figure) not in best or statistics.median(values) > statistics.median(best[peer, figure]):
                best[peer, figure] = values
    return best


def in_order(best):
    return sorted({peer for peer, _ in best}, key=lambda peer: (not peer.startswith("Volvelle"), peer))


def table(racers, best, figures):
    rivals = {racer.peer: f"Volvelle {racer.rival}" for racer in racers if hasattr(racer, "peer")}
    fractions = {racer.name: racer.fractions for racer in racers if isinstance(racer, Volvelle)}
    names = in_order(best)
    lines = ["| | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    for figure in figures:
        threads, kind, depth = figure
        cells = [f"{kind}, depth {depth}, {threads} thread{'s' if threads > 1 else ''}"]
        for name in names:
            values = best.get((name, figure))
            if not values:
                cells.append("–")
                continue
            cell = f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"
            if name in rivals:
                ours = best[rivals[name], figure]
                cell += f" **{statistics.median(ours) / statistics.median(values):.2f}**"
            else:
                cell += f" {100 * statistics.median(fractions[name][figure]):.0f} %"
            cells.append(cell)
        lines.append("| " + " | ".join(cells) + " |")
    pairs = "; ".join(f"{ours} against {peer}" for peer, ours in sorted(rivals.items()))
    return [*lines, "", "Of Volvelle, also the part of the machine's limit that was measured in the same run: int8 "
            "arithmetic for prefill, reads of memory for decode." +
            (f" Bold: how many times as fast as the peer Volvelle is, like against like: {pairs}." if pairs else "")]


def drawing(best, figures):
    """Bars of every figure, each figure to its own scale."""
    greens, greys = ["#0b6e4f", "#53b987", "#8fd0ae"], ["#8a8a8a", "#b5b5b5", "#6d7fa8", "#a8b4d0"]
    names = in_order(best)
    ours = sum(name.startswith("Volvelle") for name in names)
    height, parts, y = 16, [], 10
    for figure in figures:
        values = [(i, name, statistics.median(best[name, figure])) for i, name in enumerate(names)
                  if (name, figure) in best]
        most = max(value for _, _, value in values)
        threads, kind, depth = figure
        y += 22
        parts.append(f'<text x="10" y="{y - 6}" font-weight="bold">{kind}, depth {depth}, {threads} '
                     f'thread{"s" if threads > 1 else ""} (tokens/s)</text>')
        for i, name, value in values:
            colour = greens[i % len(greens)] if i < ours else greys[(i - ours) % len(greys)]
            parts.append(f'<text x="170" y="{y + 12}" text-anchor="end">{name}</text>'
                         f'<rect x="178" y="{y}" width="{400 * value / most:.1f}" height="{height - 3}" '
                         f'fill="{colour}"/>'
                         f'<text x="{184 + 400 * value / most:.1f}" y="{y + 12}">{value:.0f}</text>')
            y += height
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="660" height="{y + 10}" font-family="sans-serif" '
            f'font-size="12">' + "".join(parts) + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(prog="race.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--shape", choices=["llama-1b", "mpt-300m"], help="random weights instead of a checkpoint")
    parser.add_argument("--volvelle", default="build/volvelle")
    parser.add_argument("--threads", type=numbers, default=[1])
    parser.add_argument("--depths", type=numbers, default=[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, help="the checkpoint's own (default what --folder says, else 8192)")
    parser.add_argument("--folder", type=Path, help="the same checkpoint as a Hugging Face folder")
    parser.add_argument("--python", help="a Python that has peers as packages")
    parser.add_argument("--work", type=Path, help="where what the peers need is kept for the next race")
    parser.add_argument("-o", "--output", type=Path, default=Path("."))
    options = parser.parse_args()
    if (options.checkpoint is None) == (options.shape is None):
        parser.error("race what? A CHECKPOINT.gguf or a --shape")

    with tempfile.TemporaryDirectory() as name:
        try:
            work = options.work or Path(name)
            work.mkdir(parents=True, exist_ok=True)
            if options.shape:
                options.folder = prepared(work / options.shape, lambda path: run(
                    [options.python or sys.executable, HERE / "random_model.py", options.shape, path]))
                options.checkpoint = options.folder / "model.gguf"
            title = options.shape or options.checkpoint.stem
            files = work / f"{title}-files"
            files.mkdir(exist_ok=True)
            racers = contestants(options, files)
            times = race(options, racers)
            racers = [racer for racer in racers if times[racer.name]]
        except Failure as failure:
            sys.exit(f"race: {failure}")

    best = best_settings(racers, times)
    figures = [(threads, kind, depth) for threads in options.threads for depth in options.depths
               for kind in ("prefill", "decode")]
    versions = sorted({racer.version for racer in racers})
    weights = " with random weights" if options.shape else ""
    lines = [f"{title}{weights} on {processor()}, {os.cpu_count()} cores, {platform.system()} "
             f"{platform.release()}: tokens a second, prefill of {PREFILL} and decode of {DECODE} tokens, median "
             f"(least-greatest) of {options.rounds} interleaved rounds; of each peer its fastest setting.", "",
             *table(racers, best, figures), "", "Versions: " + ", ".join(versions) + "."]
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "race.md").write_text("\n".join(lines) + "\n")
    (options.output / "race.svg").write_text(drawing(best, figures))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
