#!/usr/bin/env python3
"""Makes the goldens of encoder-decoders: both stacks, greedy search and beams.

    seq2seq.py [NAME...]           all of them, or those named

The reference is transformers 5.24.0, eager attention, float32, under the conditions of make.py.
README.md says what `expected.json` holds. Folders go where those of families.py go.

Sources were drawn until what is generated from them stayed the same four times with noise of five
tolerances in every logit, and differed from what other settings give.
"""

import copy
import json
import math
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, LogitsProcessor, LogitsProcessorList

from decoders import (bucket_faults, scale_fault, setting_in_modules, sinusoid_faults,
                      table_faults, with_small_epsilons, with_table, without)
from encoders import each_table, largest, rolled
from families import ABSENT, Doubles, checkpoint, config_of
from make import HERE, TOLERANCE, attempt, one_line_lists, tidy

FOLDER_LIMIT = 150_000  # bytes


# --------------------------------------------------------------------------------------------------
# Reference models


def reading(folder, reference={}):
    raw = json.loads((folder / "config.json").read_text())
    config = AutoConfig.from_pretrained(folder, **reference)
    config._attn_implementation = "eager"
    return getattr(transformers, raw["architectures"][0])(config).eval()


@torch.no_grad()
def outputs(model, given):
    """The encoder's last hidden state, and logits for each of the decoder's tokens."""
    found = model(input_ids=torch.tensor([given["tokens"]]),
                  decoder_input_ids=torch.tensor([given["decoder_tokens"]]), use_cache=False)
    return {"hidden": found.encoder_last_hidden_state[0].numpy(), "logits": found.logits[0].numpy()}


def outputs_in_double(model, given):
    """Those of the same model in float64 throughout."""
    model = copy.deepcopy(model).double()
    torch.set_default_dtype(torch.float64)
    try:
        with Doubles():
            return outputs(model, given)
    finally:
        torch.set_default_dtype(torch.float32)


EMBEDDINGS = ("shared.weight", "embed_tokens.weight")


def scatter(model, rng, fixed=(), embedding=1.3, gain=1.3):
    """Random weights as in make.py, of values that half precision has, but for tables `fixed`."""
    bucketed = "t5" in model.config.model_type
    for name, parameter in model.named_parameters():
        if name in fixed:
            continue
        x = rng.standard_normal(parameter.shape)
        if name.endswith("bias"):
            x *= 0.3
        elif x.ndim == 1:
            x = 1 + 0.25 * x
        elif "relative_attention_bias" in name:
            x *= 1.5
        else:
            factor = gain
            if any(part in name for part in ("q_proj", "k_proj", "Attention.q.", "Attention.k.")):
                factor = 1.0 if bucketed else 1.7
            elif name.endswith(EMBEDDINGS):
                factor = embedding
            x *= factor / math.sqrt(x.shape[-1])
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(x).half().float())
    for name, parameter in model.named_parameters():
        if name.endswith(EMBEDDINGS) or name == "lm_head.weight":  # ends come early
            parameter.data[model.config.eos_token_id] *= 1.75
            parameter.data.copy_(parameter.data.half().float())
    if hasattr(model, "final_logits_bias"):
        x = 0.5 * rng.standard_normal(model.final_logits_bias.shape)
        model.final_logits_bias.copy_(torch.from_numpy(x).half().float())


# --------------------------------------------------------------------------------------------------
# Generation


class Noise(LogitsProcessor):
    """Adds what a correct implementation might be off by, several times over."""

    def __init__(self, size, seed):
        self.size, self.random = size, torch.Generator().manual_seed(seed)

    def __call__(self, tokens, scores):
        noise = torch.rand(scores.shape, generator=self.random) * 2 - 1
        return scores + self.size * noise.to(scores)


@torch.no_grad()
def generated(model, sources, settings, noise=None):
    """For each source ids after the start token, the end included, and the score of beams."""
    more = {"logits_processor": LogitsProcessorList([noise])} if noise else {}
    found = model.generate(torch.tensor(sources), return_dict_in_generate=True, output_scores=True,
                           attention_mask=torch.ones(len(sources), len(sources[0])),
                           **settings, **more)
    rows = []
    for ids in found.sequences.tolist():
        ids = ids[1:]
        end = model.generation_config.eos_token_id
        rows.append(tuple(ids[: ids.index(end) + 1] if end in ids else ids))
    scores = getattr(found, "sequences_scores", None)
    return rows, [None] * len(rows) if scores is None else scores.tolist()


def generations(model, rng, variants, size):
    """A source for each variant, what it gives, and a score; None where no source was fair.

    A variant is settings that are laid over the model's own, and settings for comparison (or
    None), which have to give something else.
    """
    rows = []
    for settings, otherwise in variants:
        sources = rng.integers(3, model.config.vocab_size, (48, rng.integers(6, 16))).tolist()
        ids, _ = generated(model, sources, settings)
        fair = [i for i, x in enumerate(ids) if len(x) > 3 and len(set(x)) > 3]
        if otherwise is not None and fair:
            others, _ = generated(model, sources, otherwise)
            fair = [i for i in fair if others[i] != ids[i]]
        for seed in range(4):
            if fair:
                others, _ = generated(model, [sources[i] for i in fair], settings,
                                      Noise(size, seed))
                fair = [i for i, other in zip(fair, others) if other == ids[i]]
        if not fair:
            print("no fair source for", settings)
            return None
        source = sources[fair[0]]
        (alone,), (score,) = generated(model, [source], settings)
        assert alone == ids[fair[0]]
        row = {"tokens": source, "settings": settings, "ids": list(alone)}
        rows.append(row if score is None else row | {"score": round(score, 6)})
    return rows


# --------------------------------------------------------------------------------------------------
# Families


def t5(architecture="T5ForConditionalGeneration", model_type="t5", **keys):
    return config_of(architecture, model_type, **{
        "vocab_size": 59, "d_model": 30, "d_kv": 8, "d_ff": 44, "num_layers": 3,
        "num_decoder_layers": 2, "num_heads": 3, "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128, "feed_forward_proj": "relu",
        "layer_norm_epsilon": 0.02, "is_encoder_decoder": True, "bos_token_id": ABSENT,
        "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0} | keys)


GREEDY = {"num_beams": 1, "max_new_tokens": 12}
BEAM = {"num_beams": 4, "max_new_tokens": 12}
MILD, STRONG = BEAM | {"length_penalty": 0.6}, BEAM | {"length_penalty": 2.0}
EARLY = STRONG | {"early_stopping": True}
NEVER = STRONG | {"early_stopping": "never"}
VARIANTS = [
    (GREEDY, BEAM), (BEAM, GREEDY), (MILD, STRONG), (STRONG, MILD), (EARLY, STRONG),
    (STRONG, EARLY), (NEVER, EARLY), (BEAM | {"min_length": 6}, BEAM),
    (BEAM | {"no_repeat_ngram_size": 2}, BEAM),
]


T5 = bucket_faults("T5Attention", **{
    "buckets of one side": setting_in_modules("T5Attention", is_decoder=True),
    "no bias": each_table("relative_attention_bias.weight", torch.zeros_like)})

CASES = {
    "t5": dict(
        about="t5 v1.0: three encoder layers and two decoder layers, three heads of 8 in 30, 32 "
              "buckets up to 128 and a longer input; relu, logits times the root of 1/30; tied; "
              "epsilon 0.02",
        config=t5(), inputs=[(150, 30), (9, 5)], gains={"embedding": 7.0, "gain": 2.0},
        faults=T5),
}


# --------------------------------------------------------------------------------------------------


def random_input(rng, config, lengths):
    source, target = ([int(x) for x in rng.integers(3, config.vocab_size, n)] for n in lengths)
    return {"tokens": source,
            "decoder_tokens": [config.decoder_start_token_id, *target[1:]]}


def record(folder, model, case, inputs, rng):
    """Writes arrays and expected.json; False when some margin is too small for a fair test."""
    found = [outputs(model, given) for given in inputs]
    kinds = list(found[0])
    ranges = {kind: largest([x[kind] for x in found]) for kind in kinds}

    def moved(others, kind):
        return max(float(np.abs(a[kind] - b[kind]).max())
                   for a, b in zip(found, others)) / ranges[kind]

    truth = [outputs_in_double(model, given) for given in inputs]
    noise = max(moved(truth, kind) for kind in kinds)
    if noise > TOLERANCE / 10 or min(ranges.values()) < 4:
        print(f"{folder.name}: noise {noise:.1e}, {ranges}")
        return False
    rows = generations(model, rng, case.get("variants", VARIANTS), 5 * TOLERANCE * ranges["logits"])
    if rows is None:
        return False
    faults = {}
    for name, fault in case["faults"].items():
        wrong = copy.deepcopy(model)
        fault(wrong)
        faults[name] = moved([outputs(wrong, given) for given in inputs], "logits")
    print(f"{folder.name}: noise {noise:.1e}, "
          + ", ".join(f"{kind} {x:.2f}" for kind, x in (ranges | faults).items()))
    if min(faults.values()) < 100 * TOLERANCE:
        return False
    described = []
    for i, (given, arrays) in enumerate(zip(inputs, found)):
        files = {kind: f"{kind}_{i}.npy" for kind in kinds}
        for kind, file in files.items():
            np.save(folder / file, arrays[kind].astype(np.float32))
        described.append(given | files)
    expected = {"description": case["about"], "source": "folder", "inputs": described,
                "generated": rows, "ranges": {kind: round(x, 5) for kind, x in ranges.items()},
                "disturbance": round(min(faults.values()), 5)}
    (folder / "expected.json").write_text(one_line_lists(expected) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert size < FOLDER_LIMIT, f"{folder.name} has {size} bytes"
    return True


def make_folder(name):
    case = CASES[name]
    config, reference = case["config"], case.get("reference", {})

    def make(folder, rng):
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        settings = case.get("generation", {
            k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id",
                                   "decoder_start_token_id") if k in config})
        if settings:
            (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        model = reading(folder, reference)
        fixed = case.get("tables", ())
        scatter(model, rng, fixed, **case.get("gains", {}))
        state = {n: x.float() if n in fixed else x.half() for n, x in checkpoint(model).items()}
        tidy(folder, case.get("rename", dict)(state))
        read = type(model).from_pretrained(folder, attn_implementation="eager",
                                           dtype=torch.float32, **reference).eval()
        inputs = [random_input(rng, model.config, x) for x in case["inputs"]]
        ours, theirs = outputs(model, inputs[1]), outputs(read, inputs[1])
        assert all(np.array_equal(ours[kind], theirs[kind]) for kind in ours)
        return record(folder, read, case, inputs, rng)

    kept = HERE / name
    attempt(case.get("seed", name), make, kept if kept.exists() else HERE / "pending" / name, 300)


def main(names):
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are: {', '.join(CASES)}")
    for name in names or CASES:
        make_folder(name)


if __name__ == "__main__":
    main(sys.argv[1:])
