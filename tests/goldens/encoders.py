#!/usr/bin/env python3
"""Makes the goldens of encoders: hidden states, pooled outputs and the logits of heads.

    encoders.py [NAME...]          all that this version of transformers can make, or those named

The reference is transformers 5.24.0, eager attention, float32, each input alone and without
padding, under the conditions of make.py. README.md says what `expected.json` holds. Folders go
where those of families.py go.
"""

import copy
import json
import math
import sys

import numpy as np
import torch
import transformers
from transformers import AutoConfig

from decoders import VERSION_5, each_table
from families import ABSENT, Doubles, checkpoint, config_of
from make import HERE, TOLERANCE, attempt, one_line_lists, spread, tidy

FOLDER_LIMIT = 100_000  # bytes


# --------------------------------------------------------------------------------------------------
# Reference models


def reading(folder, reference={}):
    """A model of the configuration in `folder`, without its weights."""
    raw = json.loads((folder / "config.json").read_text())
    config = AutoConfig.from_pretrained(folder, **reference)
    config._attn_implementation = "eager"
    return getattr(transformers, raw["architectures"][0])(config).eval()


@torch.no_grad()
def outputs(model, given):
    """Arrays of [rows, columns]: `hidden`, `pooled` and `logits`, where the model has them."""
    tokens = torch.tensor([given["tokens"]])
    inputs = {"attention_mask": torch.ones_like(tokens)}
    if "token_types" in given:
        inputs["token_type_ids"] = torch.tensor([given["token_types"]])
    base = getattr(model, model.base_model_prefix, model)
    below = base(tokens, **inputs)
    found = {"hidden": below.last_hidden_state}
    if getattr(below, "pooler_output", None) is not None:
        found["pooled"] = below.pooler_output
    if base is not model:
        found["logits"] = model(tokens, **inputs).logits
    return {kind: x.reshape(-1, x.shape[-1]).numpy() for kind, x in found.items()}


def outputs_in_double(model, given):
    """Those of the same model in float64 throughout, its frequencies still those of float32."""
    model = copy.deepcopy(model).double()
    torch.set_default_dtype(torch.float64)
    try:
        with Doubles():
            return outputs(model, given)
    finally:
        torch.set_default_dtype(torch.float32)


QUERIES = (".query.", ".key.", "q_lin", "k_lin", "query_proj", "key_proj", "Wqkv")


def scatter(model, rng, gain=1.3):
    """Random weights as in make.py, of values that half precision has."""
    for name, parameter in model.named_parameters():
        x = rng.standard_normal(parameter.shape)
        if name.endswith("bias"):
            x *= 0.3
        elif x.ndim == 1:
            x = 1 + 0.25 * x
        elif "distance_embedding" in name:
            x *= 0.7
        else:
            factor = 1.7 if any(part in name for part in QUERIES) else gain
            x *= factor / math.sqrt(x[0].size)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(x).half().float())


# --------------------------------------------------------------------------------------------------
# Faults: functions that put a model a little wrong


def rolled(ending):
    return each_table(ending, lambda x: x.roll(-1, 0))


def emptied(ending):
    return each_table(ending, torch.zeros_like)


def with_small_epsilons(model):
    for module in model.modules():
        for key in ("eps", "variance_epsilon"):
            if getattr(module, key, 0) > 1e-3:
                setattr(module, key, 1e-5)


def setting(**values):
    """A fault that sets attributes of all modules that have them."""

    def fault(model):
        hit = False
        for module in model.modules():
            for key, value in values.items():
                if hasattr(module, key):
                    setattr(module, key, value)
                    hit = True
        assert hit, values

    return fault


# --------------------------------------------------------------------------------------------------
# Families


LABELS = {"id2label": {"0": "grief", "1": "calm", "2": "joy"},
          "label2id": {"grief": 0, "calm": 1, "joy": 2}}


def bert(architecture, **keys):
    return config_of(architecture, "bert", **{
        "vocab_size": 61, "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 5, "hidden_act": "gelu", "max_position_embeddings": 40,
        "type_vocab_size": 2, "layer_norm_eps": 0.02, "pad_token_id": 0,
        "bos_token_id": ABSENT, "eos_token_id": ABSENT} | keys)


def legacy_names(state):
    """As the first BERT checkpoints have them, with the head that nothing here reads."""
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma")
               .replace("LayerNorm.bias", "LayerNorm.beta"): x for name, x in state.items()}
    width = len(state["bert.embeddings.LayerNorm.weight"])
    return old | {"cls.seq_relationship.weight": torch.ones(2, width).half(),
                  "cls.seq_relationship.bias": torch.ones(2).half(),
                  "bert.embeddings.position_ids": torch.arange(40)[None],
                  "bert.pooler.dense.weight": torch.ones(width, width).half(),
                  "bert.pooler.dense.bias": torch.ones(width).half()}


ABSOLUTE = {"positions one row off": rolled("position_embeddings.weight"),
            "no positions": emptied("position_embeddings.weight"),
            "epsilon": with_small_epsilons}
BERT = ABSOLUTE | {"token types one row off": rolled("token_type_embeddings.weight")}
WITHIN_40 = [(1,), (23, 17), (11,), (5, 9)]  # lengths of sentences, or of pairs of them

CASES = {
    "bert": dict(
        about="bert: the encoder and its pooler, names without `bert.`; an input of one token, one "
              "of all 40 positions; epsilon 0.02",
        config=bert("BertModel"), inputs=WITHIN_40, faults=BERT),
    "bert_fill": dict(
        about="bert: a head that fills masks, tied to the embeddings",
        config=bert("BertForMaskedLM"), inputs=WITHIN_40, faults=BERT),
}


# --------------------------------------------------------------------------------------------------


def random_input(rng, vocabulary, lengths):
    given = {"tokens": [int(x) for x in rng.integers(3, vocabulary, sum(lengths))]}
    if len(lengths) > 1:
        given["token_types"] = [i for i, n in enumerate(lengths) for _ in range(n)]
    return given


def largest(arrays):
    """The range of all values of a kind."""
    return float(max(x.max() for x in arrays) - min(x.min() for x in arrays))


def record(folder, model, case, inputs, suffix="", find=outputs, find_in_double=outputs_in_double,
           source="folder"):
    """Writes arrays and expected.json; False when some margin is too small for a fair test."""
    found = [find(model, given) for given in inputs]
    truth = [find_in_double(model, given) for given in inputs]
    kinds = list(found[0])
    ranges = {kind: largest([x[kind] for x in found]) for kind in kinds}

    def moved(others, kind):
        """How far arrays of a kind are from those of the reference, in ranges."""
        return max(float(np.abs(a[kind] - b[kind]).max())
                   for a, b in zip(found, others)) / ranges[kind]

    noise = max(moved(truth, kind) for kind in kinds)
    faults = {}
    for name, fault in case["faults"].items():
        wrong = copy.deepcopy(model)
        fault(wrong)
        others = [find(wrong, given) for given in inputs]
        faults[name] = min(moved(others, kind) for kind in kinds)
    print(f"{folder.name}{suffix}: noise {noise:.1e}, "
          + ", ".join(f"{kind} {x:.2f}" for kind, x in (ranges | faults).items()))
    if min(ranges.values()) < 0.5 or noise > TOLERANCE / 10:
        return False
    if min(faults.values()) < 100 * TOLERANCE:
        return False
    rows = []
    for i, (given, arrays) in enumerate(zip(inputs, found)):
        files = {kind: f"{kind}{suffix}_{i}.npy" for kind in kinds}
        for kind, file in files.items():
            np.save(folder / file, arrays[kind].astype(np.float32))
        rows.append(given | files)
    expected = {"description": case["about"], "source": source, "inputs": rows,
                "ranges": {kind: round(x, 5) for kind, x in ranges.items()},
                "disturbance": round(min(faults.values()), 5)}
    (folder / f"expected{suffix}.json").write_text(one_line_lists(expected) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert size < FOLDER_LIMIT, f"{folder.name} has {size} bytes"
    return True


def make_folder(name):
    case = CASES[name]
    config, reference = case["config"], case.get("reference", {})

    def make(folder, rng):
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        model = reading(folder, reference)
        scatter(model, rng, **case.get("gains", {}))
        inputs = [random_input(rng, config["vocab_size"], x) for x in case["inputs"]]
        state = {n: x.half() for n, x in checkpoint(model).items()}
        tidy(folder, case.get("rename", dict)(state))
        dtype = {"dtype" if VERSION_5 else "torch_dtype": torch.float32}
        read = type(model).from_pretrained(
            folder, attn_implementation="eager", **dtype, **reference).eval()
        ours, theirs = outputs(model, inputs[1]), outputs(read, inputs[1])
        assert all(np.array_equal(ours[kind], theirs[kind]) for kind in ours)
        return record(folder, model, case, inputs)

    kept = HERE / name
    attempt(case.get("seed", name), make, kept if kept.exists() else HERE / "pending" / name, 50)


def main(names):
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are: {', '.join(CASES)}")
    for name in names or CASES:
        wanted = CASES[name].get("version", "5.24.0")
        if transformers.__version__ == wanted:
            make_folder(name)
        else:
            print(f"{name}: left to transformers {wanted}")


if __name__ == "__main__":
    main(sys.argv[1:])
