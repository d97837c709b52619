#!/usr/bin/env python3
"""Makes the goldens whose linears are packed as AWQ and GPTQ leave them, under make.py's conditions.

    packed.py [NAME...]            all of them, or those named

Random weights are rounded to codes, zero points and float16 scales, and packed here from the
formats' descriptions; the reference is the model of the dequantised weights, (code - zero) * scale,
which float32 holds exactly.
"""

import json
import sys

import numpy as np
import torch

from make import attempt, base, random_state, record, reference, tidy

AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # of neighbouring outputs, in a word
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def along_rows(codes, bits, places=None):
    """int32 words of neighbours in a row."""
    per_word = 32 // bits
    places = places or range(per_word)
    grouped = codes.astype(np.uint64).reshape(len(codes), -1, per_word)
    words = sum(grouped[..., i] << np.uint64(bits * place) for i, place in enumerate(places))
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


def rounded(weight, settings, rng):
    """Codes [inputs, outputs], zero points and scales [groups, outputs], the group of each input."""
    bits = settings["bits"]
    inputs = weight.shape[1]
    group = inputs if settings["group_size"] == -1 else settings["group_size"]
    group_of = np.arange(inputs) // group
    if settings.get("desc_act"):
        group_of = rng.permutation(group_of)
    x = weight.numpy().astype(np.float64).T
    groups, top = inputs // group, 2**bits - 1
    low = np.array([x[group_of == g].min(0) for g in range(groups)])
    high = np.array([x[group_of == g].max(0) for g in range(groups)])
    if settings.get("sym"):
        scales = (np.maximum(high, -low) * 2 / top).astype(np.float16)
        zeros = np.full(scales.shape, (top + 1) // 2)
    else:
        scales = ((high - low) / top).astype(np.float16)
        zeros = np.clip(np.rint(-low / scales), 1, top).astype(int)
    codes = np.clip(np.rint(x / scales[group_of] + zeros[group_of]), 0, top).astype(int)
    return codes, zeros, scales, group_of


def pack(weight, settings, rng):
    """The tensors of a packed linear by the ends of their names, and its weights again."""
    codes, zeros, scales, group_of = rounded(weight, settings, rng)
    bits, scale = settings["bits"], torch.from_numpy(scales)
    meant = ((codes - zeros[group_of]) * scales[group_of].astype(np.float64)).T
    if settings["quant_method"] == "awq":
        tensors = {"qweight": along_rows(codes, bits, AWQ_PLACES),
                   "qzeros": along_rows(zeros, bits, AWQ_PLACES)}
    else:
        less = settings.get("checkpoint_format") != "gptq_v2"
        tensors = {"qweight": along_rows(codes.T, bits).T.contiguous(),
                   "qzeros": along_rows(zeros - less, bits),
                   "g_idx": torch.from_numpy(group_of.astype(np.int32))}
    return tensors | {"scales": scale}, torch.from_numpy(meant.astype(np.float32))


def sizes(family="llama", **keys):
    return base(family, **{"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128,
                           "torch_dtype": "float16"} | keys)


CASES = {
    "awq": {
        "about": "awq, groups of 32 with zero points; biases of q, k and v",
        "config": sizes("qwen2"),
        "packing": {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32,
                    "zero_point": True, "modules_to_not_convert": None},
    },
    "gptq": {
        "about": "gptq, symmetric, groups of 64, a bias of zeros beside each linear",
        "config": sizes(),
        "packing": {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True,
                    "desc_act": False, "damp_percent": 0.01, "true_sequential": True},
        "zero_biases": True,
    },
    "gptq_v2": {
        "about": "gptq_v2, zero points as they are, inputs of a group scattered (desc_act)",
        "config": sizes(),
        "packing": {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 4,
                    "group_size": 32, "sym": False, "desc_act": True, "pack_dtype": "int32"},
    },
    "gptq_8_bits": {
        "about": "gptq, eight bits, one group to a row",
        "config": sizes(),
        "packing": {"quant_method": "gptq", "checkpoint_format": "gptq", "bits": 8,
                    "group_size": -1, "sym": False, "desc_act": False},
    },
}


def make_folder(name):
    case = CASES[name]
    config, packing = case["config"], case["packing"]

    def make(folder, rng):
        whole = config | {"quantization_config": packing}
        (folder / "config.json").write_text(json.dumps(whole, indent=2) + "\n")
        ends = {k: config[k] for k in ("bos_token_id", "eos_token_id")}
        (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
        stored, meant = {}, {}
        for tensor, x in random_state(config, rng).items():
            stem = tensor.removesuffix(".weight")
            if not stem.endswith(LINEARS) or stem == tensor:
                stored[tensor] = x.half()
                meant[tensor] = stored[tensor].float()
                continue
            tensors, meant[tensor] = pack(x, packing, rng)
            stored |= {f"{stem}.{end}": y for end, y in tensors.items()}
            if case.get("zero_biases"):
                stored[f"{stem}.bias"] = torch.zeros(len(x), dtype=torch.float16)
        tidy(folder, stored)
        return record(folder, reference(config, meant), case["about"], "folder", rng)

    attempt(name, make)


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make_folder(name)
