#!/usr/bin/env python3
"""Makes the goldens beside this file: tiny random checkpoints, and what the reference says of them.

Maintainers run it; tests only read what it wrote. It needs Python 3.11 and, from PyPI,
    torch==2.13.0 transformers==5.24.0 gguf safetensors numpy tokenizers
and writes the same bytes again on every run on the same machine (torch's sums may differ elsewhere in
the last bits). Without arguments it makes everything that needs no download; otherwise it makes what is
named:

    make.py [NAME...]              the goldens of these names, `gguf_blocks`, `long_positions`, `dials`
    make.py smollm2 GGUF [TEXT]    the figures of the sample checkpoint; TEXT is for perplexity
        --folder OUT               and the dequantised model as a Hugging Face folder

The reference is transformers with eager attention in float32. README.md says what each golden holds.
"""

import copy
import json
import math
import pathlib
import shutil
import struct
import sys
import types
import zlib

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Block
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
TOLERANCE = 5e-5  # of the logits' range: what the tests allow
LIMIT = 300_000  # bytes in one golden's folder
PROMPT, CONTINUATION = 48, 16  # tokens

torch.set_num_threads(2)
transformers.logging.set_verbosity_error()


# ---------------------------------------------------------------------------------------------------
# Random models


def shapes(config):
    """Names and shapes of every tensor of a model of these families, in file order."""
    family = config["model_type"]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    projection_bias = family == "qwen2" or config.get("attention_bias", False)
    output_bias = family != "qwen2" and config.get("attention_bias", False)
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        for name, rows, columns, bias in [
            ("self_attn.q_proj", heads * head_dim, hidden, projection_bias),
            ("self_attn.k_proj", kv_heads * head_dim, hidden, projection_bias),
            ("self_attn.v_proj", kv_heads * head_dim, hidden, projection_bias),
            ("self_attn.o_proj", hidden, heads * head_dim, output_bias),
            ("mlp.gate_proj", inner, hidden, config.get("mlp_bias", False)),
            ("mlp.up_proj", inner, hidden, config.get("mlp_bias", False)),
            ("mlp.down_proj", hidden, inner, config.get("mlp_bias", False)),
        ]:
            yield at + name + ".weight", (rows, columns)
            if bias:
                yield at + name + ".bias", (rows,)
        if family == "qwen3":
            yield at + "self_attn.q_norm.weight", (head_dim,)
            yield at + "self_attn.k_norm.weight", (head_dim,)
        yield at + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (config["vocab_size"], hidden)


def deviation(name, shape):
    """Standard deviation of a weight: queries and keys are large, so that attention is peaky."""
    gain = 1.7 if "q_proj" in name or "k_proj" in name else 1.3
    return gain / math.sqrt(shape[-1])


def random_state(config, rng):
    state = {}
    for name, shape in shapes(config):
        x = rng.standard_normal(shape)
        if name.endswith(".bias"):
            x *= 0.3
        elif len(shape) == 2:
            x *= deviation(name, shape)
        else:  # a norm's weight
            x = (1.6 if "q_norm" in name or "k_norm" in name else 1.0) * (1 + 0.25 * x)
        state[name] = torch.from_numpy(x.astype(np.float32))
    return state


# ---------------------------------------------------------------------------------------------------
# The reference


def reference(config, state):
    """The float32 model of transformers; `config` is a folder or a dictionary."""
    if isinstance(config, dict):
        config = dict(config)
        config = AutoConfig.for_model(config.pop("model_type"), **config)
    else:
        config = AutoConfig.from_pretrained(config)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    missing, unexpected = model.load_state_dict(
        {name: x.float() for name, x in state.items()}, strict=False
    )
    assert not unexpected, unexpected
    if config.tie_word_embeddings:
        model.tie_weights()
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert set(missing) <= {"lm_head.weight"}, missing
    else:
        assert not missing, missing
    return model


def in_double(model):
    """The same model in float64 throughout; frequencies keep the float32 values they were formed with."""

    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def rotary(self, x, position_ids):
        angles = position_ids[..., None].double() * self.inv_freq.double()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling

    model = copy.deepcopy(model).double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
        elif type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = types.MethodType(rotary, module)
    model.needs_double_attention = True
    return model


def double_attention(module, query, key, value, mask, scaling, dropout=0.0, **_):
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    weights = (query @ key.transpose(2, 3) * scaling + mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


@torch.no_grad()
def logits_of(model, tokens, first_position=0):
    positions = torch.arange(first_position, first_position + len(tokens))[None]
    source = sys.modules[type(model).__module__]
    eager = source.eager_attention_forward
    if getattr(model, "needs_double_attention", False):
        source.eager_attention_forward = double_attention
    try:
        return model(
            torch.tensor([tokens]), position_ids=positions, use_cache=False
        ).logits[0].numpy()
    finally:
        source.eager_attention_forward = eager


def greedy(model, tokens, count, first_position=0):
    """The continuation, and the least lead of a winner over its runner-up."""
    tokens, lead = list(tokens), math.inf
    for _ in range(count):
        last = np.sort(row := logits_of(model, tokens, first_position)[-1])
        lead = min(lead, float(last[-1] - last[-2]))
        tokens.append(int(row.argmax()))
    return tokens[-count:], lead


def spread(logits):
    return float(logits.max() - logits.min())


def disturbances(model, tokens, logits, first_position):
    """How far logits move, in ranges, when positions or windows are a little wrong."""

    def moved(wrong):
        return float(np.abs(logits_of(wrong, tokens, first_position) - logits).max()) / spread(logits)

    found = {}
    planes = model.model.rotary_emb.inv_freq.shape[0]
    exponents = torch.arange(planes) / planes
    for name, factor in [("stretch 1.1", 1.1), ("base 1.1", 1.1**-exponents)]:
        wrong = copy.deepcopy(model)
        wrong.model.rotary_emb.inv_freq *= factor
        found[name] = moved(wrong)
    if model.config.to_dict().get("rope_parameters", {}).get("rope_type") == "llama3":
        wrong = copy.deepcopy(model)
        wrong.model.rotary_emb.inv_freq.copy_(
            wrong.model.rotary_emb.compute_default_rope_parameters(model.config)[0]
        )
        found["no scaling"] = moved(wrong)
    if getattr(model.config, "sliding_window", None):
        wrong = copy.deepcopy(model)
        wrong.config.sliding_window += 1
        wrong.model.config.sliding_window = wrong.config.sliding_window
        found["window + 1"] = moved(wrong)
    return found


def record(folder, model, description, source, rng, first_position=0, tokens=None):
    """Writes logits.npy and expected.json; False when some margin is too small for a fair test."""
    vocabulary = model.config.vocab_size
    if tokens is None:
        tokens = [int(x) for x in rng.integers(3, vocabulary, PROMPT)]
    exact = in_double(model)
    truth = logits_of(exact, tokens, first_position)
    logits = truth.astype(np.float32) if first_position else logits_of(model, tokens, first_position)
    scale = spread(logits)
    noise = float(np.abs(logits - truth).max()) / scale
    judge = exact if first_position else model
    following, lead = greedy(judge, tokens, CONTINUATION, first_position)
    found = disturbances(judge, tokens, logits, first_position)
    print(f"{folder.name}: range {scale:.1f}, noise {noise:.1e}, lead {lead / scale:.1e}, "
          + ", ".join(f"{name} {x:.3f}" for name, x in found.items()))
    if scale < 4 or noise > TOLERANCE / 10 or lead < 20 * TOLERANCE * scale:
        return False
    if len(set(following)) < 4 or min(found.values()) < 100 * TOLERANCE:
        return False
    np.save(folder / "logits.npy", logits.astype(np.float32))
    expected = {
        "description": description,
        "source": source,
        "tokens": tokens,
        "greedy": following,
        "logits": "logits.npy",
        "first_position": first_position,
        "disturbance": round(min(found.values()), 5),
        "range": round(scale, 5),
    }
    (folder / "expected.json").write_text(one_line_lists(expected) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert size < LIMIT, f"{folder.name} has {size} bytes"
    return True


def one_line_lists(tree):
    body = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in tree.items())
    return "{\n" + body + "\n}"


def attempt(name, make):
    """Calls make(folder, rng) with seed after seed until every margin is fair."""
    folder = HERE / name
    for trial in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if make(folder, np.random.default_rng([zlib.crc32(name.encode()), trial])):
            return
    raise SystemExit(f"{name}: no fair model in 20 trials")


# ---------------------------------------------------------------------------------------------------
# Hugging Face folders


def base(family, **changes):
    """A config.json as its files have it; a change to None leaves the key out."""
    config = {
        "architectures": [{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
                           "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]],
        "model_type": family,
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ABSENT}


ABSENT = object()
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}


def tidy(folder, state):
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def sharded(folder, state):
    names, parts, index = list(state), 3, {}
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        mine = names[part * len(names) // parts : (part + 1) * len(names) // parts]
        save_file({name: state[name] for name in mine}, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(mine, file)
    total = sum(x.numel() * x.element_size() for x in state.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1))


def with_head_copy(folder, state):
    tidy(folder, state | {"lm_head.weight": state["model.embed_tokens.weight"].clone()})


def untidy(folder, state):
    stray = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    for layer in (0, 1):
        at = f"layers.{layer}."
        stray[at + "self_attn.rotary_emb.inv_freq"] = torch.arange(4, dtype=torch.float32)
        stray[at + "self_attn.masked_bias"] = torch.tensor(-10000.0)
        stray[at + "attn.bias"] = torch.tril(torch.ones(1, 1, 8, 8, dtype=torch.uint8))
        stray[at + "attn.masked_bias"] = torch.tensor(-10000.0)
    stray["position_ids"] = torch.arange(8)[None]
    tidy(folder, {name.removeprefix("model."): x for name, x in state.items()} | stray)


FOLDERS = {
    "llama_grouped_heads": dict(
        about="llama: two query heads to each key/value head, the embedding tied to the head",
        config=base("llama", tie_word_embeddings=True)),
    "llama_wide_heads_biases": dict(
        about="llama: head_dim 12 where hidden/heads is 8, biases on every linear, its own head",
        config=base("llama", head_dim=12, attention_bias=True, mlp_bias=True)),
    "llama_llama3_scaling": dict(
        about="llama: llama3 scaling, whose three regimes all occur; the prompt crosses the original "
              "length of 32",
        config=base("llama", head_dim=16, rope_theta=500.0, tie_word_embeddings=True,
                    rope_scaling={"rope_type": "llama3"} | LLAMA3)),
    "llama_sharded_bf16": dict(
        about="llama: three shards with an index, weights stored as bfloat16; computed in float32 from "
              "those values",
        config=base("llama", num_hidden_layers=3, torch_dtype="bfloat16"),
        dtype=torch.bfloat16, save=sharded),
    "llama_f16": dict(
        about="llama: weights stored as float16; a tied head that the file holds a second time",
        config=base("llama", torch_dtype="float16", tie_word_embeddings=True),
        dtype=torch.float16, save=with_head_copy),
    "llama_spelling_4": dict(
        about="llama: positions spelled as transformers 4 did (rope_theta, rope_scaling with `type`)",
        seed="llama_spelling",
        config=base("llama", head_dim=16, rope_theta=1000.0, num_key_value_heads=1,
                    rope_scaling={"type": "llama3"} | LLAMA3)),
    "llama_spelling_5": dict(
        about="llama: the model of llama_spelling_4, positions spelled as transformers 5 does "
              "(rope_parameters, dtype)",
        seed="llama_spelling",
        config=base("llama", head_dim=16, rope_theta=ABSENT, num_key_value_heads=1,
                    torch_dtype=ABSENT, dtype="float32",
                    rope_parameters={"rope_theta": 1000.0, "rope_type": "llama3"} | LLAMA3)),
    "llama_untidy": dict(
        about="llama: no `model.` prefix, stray tensors of several types, a tied head, several ends, "
              "no tokenizer",
        config=base("llama", tie_word_embeddings=True, eos_token_id=[2, 7, 9], num_key_value_heads=4,
                    pretraining_tp=1, use_cache=True),
        save=untidy),
    "llama_odd_widths": dict(
        about="llama: hidden 36, inner 52, six query heads on three key/value heads of 6",
        config=base("llama", vocab_size=97, hidden_size=36, intermediate_size=52,
                    num_attention_heads=6, num_key_value_heads=3)),
    "mistral_sliding_window": dict(
        about="mistral: a window of 16 tokens on every layer, head_dim 12 where hidden/heads is 8",
        config=base("mistral", head_dim=12, sliding_window=16, num_hidden_layers=3)),
    "mistral_no_window": dict(
        about="mistral: sliding_window null",
        config=base("mistral", sliding_window=None, rope_theta=1000000.0)),
    "qwen2_some_layers_slide": dict(
        about="qwen2: biases on q, k and v; three layers, of which the last two see a window of 12",
        config=base("qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=12,
                    max_window_layers=1, rms_norm_eps=1e-6, rope_theta=1000000.0)),
    "qwen2_window_unused": dict(
        about="qwen2: a sliding_window that use_sliding_window turns off; tied",
        config=base("qwen2", use_sliding_window=False, sliding_window=12, max_window_layers=1,
                    rms_norm_eps=1e-6, tie_word_embeddings=True)),
    "qwen3_query_key_norms": dict(
        about="qwen3: norms on the heads of q and k, head_dim 16 where hidden/heads is 8, tied",
        config=base("qwen3", head_dim=16, attention_bias=False, use_sliding_window=False,
                    sliding_window=None, max_window_layers=2, rms_norm_eps=1e-6,
                    rope_theta=1000000.0, tie_word_embeddings=True)),
}


def make_folder(name):
    case = FOLDERS[name]
    config, dtype = case["config"], case.get("dtype", torch.float32)

    def make(folder, rng):
        if "seed" in case:  # two spellings of one model
            rng = np.random.default_rng(zlib.crc32(case["seed"].encode()))
        state = {n: x.to(dtype) for n, x in random_state(config, rng).items()}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        ends = {k: config[k] for k in ("bos_token_id", "eos_token_id")}
        (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
        case.get("save", tidy)(folder, state)
        model = reference(folder, state)
        if config.get("rope_scaling") or config.get("rope_parameters"):
            assert_three_regimes(model)
        return record(folder, model, case["about"], "folder", rng)

    attempt(name, make)


def assert_three_regimes(model):
    rotary = model.model.rotary_emb
    ratio = rotary.compute_default_rope_parameters(model.config)[0] / rotary.inv_freq
    factor = model.config.rope_parameters["factor"]
    assert (ratio == 1).any() and (ratio == factor).any() and ((ratio > 1) & (ratio < factor)).any(), ratio


def main(arguments):
    makers = {name: lambda name=name: make_folder(name) for name in FOLDERS}
    unknown = [name for name in arguments if name not in makers]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are: {', '.join(makers)}")
    for name in arguments or makers:
        makers[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
