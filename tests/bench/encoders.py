#!/usr/bin/env python3
"""Times a sentence encoder in Volvelle and in onnxruntime, on one machine in one run.

    encoders.py FOLDER --lines SENTENCES --volvelle build/volvelle [--threads 1,2] [--work DIR]

FOLDER is a sentence-transformers folder of a BERT whose vectors are means. From it come a .vvl file
of each kind of weights, the ONNX model in float, and its dynamic-int8 variants: int8 and uint8
weights, a scale per tensor and per channel. Of those whose mean cosine is within 0.0005 of the
best, the fastest stands for onnxruntime's int8.

Prints a Markdown table: sentences a second, the median of the rounds, and how far each program's
vectors are from torch's float ones over the lines of SENTENCES, each line going alone. In a round
every program is timed in turn, so that what disturbs the machine disturbs them alike. All sentences
of a batch have exactly the tokens stated: nobody pads. Tokenizing is outside of every time; pooling
is within Volvelle's and outside of onnxruntime's.

Needs torch, transformers, onnx and onnxruntime; the word after --volvelle may be a whole
command that the program's arguments are added to.
"""

import argparse
import itertools
import json
import os
import platform
import shlex
import statistics
import subprocess
import time
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic

LEAST_SECONDS = 0.2  # of one timing, as in `volvelle bench`
EQUAL_COSINE = 0.0005
WEIGHTS = ("f32", "q8", "q4")


def numbers(text):
    return [int(part) for part in text.split(",")]


# --------------------------------------------------------------------------------------------------
# onnxruntime


class HiddenStates(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def export(folder, path):
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.randint(5, 1000, (2, 16))
    axes = {0: "batch", 1: "length"}
    names = ["input_ids", "attention_mask"]
    # The exporter by tracing: the graph that it makes runs faster, in float and in int8.
    torch.onnx.export(HiddenStates(model), (ids, torch.ones_like(ids)), path, input_names=names,
                      output_names=["states"], opset_version=17, dynamo=False,
                      dynamic_axes={name: axes for name in [*names, "states"]})


def int8_variants(plain, work):
    """{description: path}"""
    variants = {}
    for kind, channels in itertools.product(("QInt8", "QUInt8"), (False, True)):
        scope = "channel" if channels else "tensor"
        path = work / f"{kind}-{scope}.onnx"
        quantize_dynamic(plain, path, weight_type=getattr(QuantType, kind), per_channel=channels)
        variants[f"{kind} per {scope}"] = path
    return variants


class Onnx:
    def __init__(self, path, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(path, options,
                                                    providers=["CPUExecutionProvider"])
        self.types = {i.name: np.int32 if "int32" in i.type else np.int64
                      for i in self.session.get_inputs()}

    def states(self, ids):
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return self.session.run(None, {n: inputs[n].astype(t) for n, t in self.types.items()})[0]

    def sentences_per_s(self, batch, length):
        ids = np.random.default_rng(0).integers(1000, 20000, (batch, length))
        self.states(ids)
        done, start = 0, time.perf_counter()
        while (seconds := time.perf_counter() - start) < LEAST_SECONDS:
            self.states(ids)
            done += batch
        return done / seconds


# --------------------------------------------------------------------------------------------------
# Volvelle


class Volvelle:
    def __init__(self, command, folder, weights, work):
        self.command = command
        self.file = work / f"{weights}.vvl"
        self.run("convert", folder, "-o", self.file, "--weights", weights, "--force")

    def run(self, *arguments):
        words = [*self.command, *map(str, arguments)]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout

    def vectors(self, lines, work):
        self.run("embed", self.file, "--lines", lines, "--normalize", "-o", work / "vectors.npy")
        return np.load(work / "vectors.npy")

    def sentences_per_s(self, threads, batches, lengths):
        told = json.loads(self.run("bench", self.file, "-t", threads, "-r", 1, "--json", "--batch",
                                   ",".join(map(str, batches)), "--length",
                                   ",".join(map(str, lengths))))
        return {(r["batch"], r["length"]): r["sentences_per_s"]["median"] for r in told["results"]}


# --------------------------------------------------------------------------------------------------
# Vectors


def unit(vector):
    return vector / np.linalg.norm(vector)


def cosines(vectors, expected):
    return (np.asarray(vectors, np.float64) * expected).sum(axis=1)


def torch_vectors(folder, sentences):
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return [unit(model(torch.tensor([ids])).last_hidden_state[0].mean(0).double().numpy())
                for ids in sentences]


def onnx_vectors(model, sentences):
    return [unit(model.states(np.array([ids]))[0].mean(axis=0, dtype=np.float64))
            for ids in sentences]


# --------------------------------------------------------------------------------------------------


def cpu_name():
    info = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    names = [line.split(":")[1].strip() for line in info.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lines", type=Path, required=True, help="a file of sentences, one a line")
    parser.add_argument("--volvelle", type=shlex.split, default=["build/volvelle"])
    parser.add_argument("--work", type=Path, default=Path(".cache/bench-encoders"))
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--batches", type=numbers, default=[1, 32])
    parser.add_argument("--lengths", type=numbers, default=[32, 128])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    shapes = list(itertools.product(options.batches, options.lengths))

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    lines = options.lines.read_text().removesuffix("\n").split("\n")
    sentences = [tokenizer(line, truncation=True, max_length=512)["input_ids"] for line in lines]
    expected = np.stack(torch_vectors(options.folder, sentences))

    plain = options.work / "float.onnx"
    export(options.folder, plain)
    variants = int8_variants(plain, options.work)
    found = {}  # description: (mean and least cosine, speed)
    for name, path in variants.items():
        model = Onnx(path, 1)
        near = cosines(onnx_vectors(model, sentences), expected)
        speed = statistics.geometric_mean(
            statistics.median(model.sentences_per_s(*shape) for _ in range(3)) for shape in shapes)
        found[name] = near, speed
        print(f"onnxruntime {name}: mean cosine {near.mean():.4f}, least {near.min():.4f}, "
              f"{speed:.0f} sentences/s", flush=True)
    enough = max(near.mean() for near, _ in found.values()) - EQUAL_COSINE
    chosen = max((name for name, (near, _) in found.items() if near.mean() >= enough),
                 key=lambda name: found[name][1])

    onnx_models = {"onnxruntime float": plain, f"onnxruntime int8 ({chosen})": variants[chosen]}
    ours = {f"volvelle {w}": Volvelle(options.volvelle, options.folder, w, options.work)
            for w in WEIGHTS}
    near = {name: cosines(onnx_vectors(Onnx(path, 1), sentences), expected)
            for name, path in onnx_models.items()}
    near |= {name: cosines(program.vectors(options.lines, options.work), expected)
             for name, program in ours.items()}

    columns = list(itertools.product(options.threads, options.batches, options.lengths))
    speeds = {name: {column: [] for column in columns} for name in near}
    for threads in options.threads:
        sessions = {name: Onnx(path, threads) for name, path in onnx_models.items()}
        for _ in range(options.rounds):
            for name, session in sessions.items():
                for shape in shapes:
                    speeds[name][threads, *shape].append(session.sentences_per_s(*shape))
            for name, program in ours.items():
                told = program.sentences_per_s(threads, options.batches, options.lengths)
                for shape, speed in told.items():
                    speeds[name][threads, *shape].append(speed)

    median = {name: {column: statistics.median(of[column]) for column in columns}
              for name, of in speeds.items()}
    spread = max((max(values) - min(values)) / statistics.median(values)
                 for of in speeds.values() for values in of.values())
    version = ours["volvelle q8"].run("--version").decode().split()[-1]
    print(f"\n{options.folder.absolute().name}, {cpu_name()}, {os.cpu_count()} cores; volvelle "
          f"{version}, onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, "
          f"transformers {transformers.__version__}; sentences a second, medians of "
          f"{options.rounds} rounds that differ by up to {spread:.0%}; cosine over "
          f"{len(sentences)} sentences\n")
    heads = [f"{t} thr., {b} × {n}" for t, b, n in columns]
    print("| | " + " | ".join(heads) + " | mean cosine | least |")
    print("|---" * (len(heads) + 3) + "|")
    for name in near:
        cells = [f"{median[name][column]:.4g}" for column in columns]
        print(f"| {name} | " + " | ".join(cells) +
              f" | {near[name].mean():.5f} | {near[name].min():.5f} |")
    baseline = median[f"onnxruntime int8 ({chosen})"]
    for weights in WEIGHTS[1:]:
        ratios = [f"{median[f'volvelle {weights}'][c] / baseline[c]:.2f}" for c in columns]
        print(f"| {weights} : int8 | " + " | ".join(ratios) + " | | |")


if __name__ == "__main__":
    main()
