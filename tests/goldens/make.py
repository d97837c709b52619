#!/usr/bin/env python3
"""Makes the goldens beside this file: tiny random checkpoints, and what the reference says of them.

Maintainers run it; tests only read what it wrote. It needs Python 3.11 and, from PyPI,
    torch==2.13.0 transformers==5.24.0 gguf safetensors numpy tokenizers
and writes the same bytes again on every run on the same machine (torch's sums may differ elsewhere
in the last bits). Without arguments it makes everything that needs no download; otherwise it makes
what is named:

    make.py [NAME...]              goldens by name, `gguf_blocks`, `long_positions`, `dials`
    make.py smollm2 GGUF [TEXT]    the figures of the sample checkpoint; TEXT is for perplexity
        --folder OUT               and the dequantised model as a Hugging Face folder

The reference is transformers, eager attention, float32. README.md says what each golden holds.
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


# --------------------------------------------------------------------------------------------------
# Random models


def shapes(config):
    """Names and shapes of every tensor of a model of these families, in file order."""
    family = config["model_type"]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
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


# --------------------------------------------------------------------------------------------------
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
    """The same model in float64 throughout, its frequencies still those formed in float32."""

    def norm(self, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean_square + self.variance_epsilon))

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
    """How far logits move, in ranges, when positions, windows or norms are a little wrong."""

    def moved(wrong):
        difference = logits_of(wrong, tokens, first_position) - logits
        return float(np.abs(difference).max()) / spread(logits)

    found = {}
    planes = model.model.rotary_emb.inv_freq.shape[0]
    exponents = torch.arange(planes) / planes
    for name, factor in [("stretch 1.1", 1.1), ("base 1.1", 1.1**-exponents)]:
        wrong = copy.deepcopy(model)
        wrong.model.rotary_emb.inv_freq *= factor
        found[name] = moved(wrong)
    rotary = model.model.rotary_emb
    unscaled = rotary.compute_default_rope_parameters(model.config)[0]
    if not torch.equal(unscaled, rotary.inv_freq.float()):
        wrong = copy.deepcopy(model)
        wrong.model.rotary_emb.inv_freq.copy_(unscaled)
        found["no scaling"] = moved(wrong)
    if model.config.rms_norm_eps > 1e-3:
        wrong = copy.deepcopy(model)
        for module in wrong.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = 1e-5
        found["epsilon"] = moved(wrong)
    if getattr(model.config, "sliding_window", None):
        wrong = copy.deepcopy(model)
        wrong.config.sliding_window += 1
        wrong.model.config.sliding_window = wrong.config.sliding_window
        found["window + 1"] = moved(wrong)
    return found


def record(folder, model, description, source, rng, first_position=0, tokens=None, exact=None,
           suffix=""):
    """Writes logits.npy and expected.json; False when some margin is too small for a fair test.

    Logits and continuation are those of `exact`, a model in double, where one is given.
    """
    if tokens is None:
        tokens = [int(x) for x in rng.integers(3, model.config.vocab_size, PROMPT)]
    truth = logits_of(exact or in_double(model), tokens, first_position)
    judge = exact or model
    logits = logits_of(judge, tokens, first_position)
    following, lead = greedy(judge, tokens, CONTINUATION, first_position)
    found = disturbances(judge, tokens, logits, first_position)
    return keep(folder, description, source, tokens, logits, truth, following, lead, found,
                first_position, suffix)


def keep(folder, description, source, tokens, logits, truth, following, lead, found,
         first_position=0, suffix="", **more):
    """Writes a record whose margins are fair; `more` are further fields of expected.json."""
    scale = spread(logits)
    noise = float(np.abs(logits - truth).max()) / scale
    print(f"{folder.name}{suffix}: range {scale:.1f}, noise {noise:.1e}, lead {lead / scale:.1e}, "
          + ", ".join(f"{name} {x:.3f}" for name, x in found.items()))
    if scale < 4 or noise > TOLERANCE / 10 or lead < 20 * TOLERANCE * scale:
        return False
    if len(set(following)) < 4 or min(found.values()) < 100 * TOLERANCE:
        return False
    np.save(folder / f"logits{suffix}.npy", logits.astype(np.float32))
    expected = {
        "description": description,
        "source": source,
        "tokens": tokens,
        "greedy": following,
        "logits": f"logits{suffix}.npy",
        "first_position": first_position,
        "disturbance": round(min(found.values()), 5),
        "range": round(scale, 5),
    } | more
    (folder / f"expected{suffix}.json").write_text(one_line_lists(expected) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert size < LIMIT, f"{folder.name} has {size} bytes"
    return True


def one_line_lists(tree, indent="  "):
    """JSON with a line for every key, and for every element of a list of objects."""

    def value(x):
        if isinstance(x, list) and x and isinstance(x[0], dict):
            rows = [one_line_lists(row, indent + "    ") for row in x]
            return "[\n" + ",\n".join(indent + "  " + row for row in rows) + f"\n{indent}]"
        return one_line_lists(x, indent + "  ") if isinstance(x, dict) else json.dumps(x)

    body = ",\n".join(f"{indent}{json.dumps(k)}: {value(v)}" for k, v in tree.items())
    return "{\n" + body + "\n" + indent[2:] + "}"


def attempt(name, make, folder=None, trials=20):
    """Calls make(folder, rng) with seed after seed until every margin is fair."""
    folder = folder or HERE / name
    for trial in range(trials):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if make(folder, np.random.default_rng([zlib.crc32(name.encode()), trial])):
            return
    raise SystemExit(f"{name}: no fair model in {trials} trials")


# --------------------------------------------------------------------------------------------------
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
        about="llama: llama3 scaling, whose three regimes all occur; the prompt crosses the "
              "original length of 32",
        config=base("llama", head_dim=16, rope_theta=500.0, tie_word_embeddings=True,
                    rope_scaling={"rope_type": "llama3"} | LLAMA3)),
    "llama_sharded_bf16": dict(
        about="llama: three shards with an index, weights stored as bfloat16; computed in float32 "
              "from those values",
        config=base("llama", num_hidden_layers=3, torch_dtype="bfloat16"),
        dtype=torch.bfloat16, save=sharded),
    "llama_f16": dict(
        about="llama: weights stored as float16; a tied head that the file holds a second time",
        config=base("llama", torch_dtype="float16", tie_word_embeddings=True),
        dtype=torch.float16, save=with_head_copy),
    "llama_spelling_4": dict(
        about="llama: positions spelled as transformers 4 did (rope_theta, rope_scaling with "
              "`type`)",
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
        about="llama: no `model.` prefix, stray tensors of several types, a tied head, several "
              "ends, no tokenizer; rope_theta and num_key_value_heads left out, as in old files",
        config=base("llama", tie_word_embeddings=True, eos_token_id=[2, 7, 9],
                    num_key_value_heads=ABSENT, rope_theta=ABSENT, pretraining_tp=1,
                    use_cache=True),
        save=untidy),
    "llama_odd_widths": dict(
        about="llama: hidden 36, inner 52, six query heads on three key/value heads of 6; epsilon "
              "0.05",
        config=base("llama", vocab_size=97, hidden_size=36, intermediate_size=52,
                    num_attention_heads=6, num_key_value_heads=3, rms_norm_eps=0.05)),
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
        about="qwen3: norms on the heads of q and k, head_dim 16 where hidden/heads is 8, tied; "
              "epsilon 0.02",
        config=base("qwen3", head_dim=16, attention_bias=False, use_sliding_window=False,
                    sliding_window=None, max_window_layers=2, rms_norm_eps=0.02,
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
            assert_three_regimes(model, LLAMA3["factor"])
        return record(folder, model, case["about"], "folder", rng)

    attempt(name, make)


def assert_three_regimes(model, factor):
    rotary = model.model.rotary_emb
    ratio = rotary.compute_default_rope_parameters(model.config)[0] / rotary.inv_freq
    assert (ratio == 1).any() and (ratio > factor * 0.999999).any(), ratio
    assert ((ratio > 1) & (ratio < factor * 0.999999)).any(), ratio


# --------------------------------------------------------------------------------------------------
# GGUF


GGUF_NAMES = [
    ("model.embed_tokens.", "token_embd."), ("model.norm.", "output_norm."),
    ("lm_head.", "output."), ("model.layers.", "blk."), ("input_layernorm.", "attn_norm."),
    ("post_attention_layernorm.", "ffn_norm."), ("self_attn.o_proj.", "attn_output."),
    ("self_attn.q_norm.", "attn_q_norm."), ("self_attn.k_norm.", "attn_k_norm."),
    ("self_attn.q_proj.", "attn_q."), ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."), ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."), ("mlp.down_proj.", "ffn_down."),
]


def gguf_name(name):
    for old, new in GGUF_NAMES:
        name = name.replace(old, new)
    return name


def permute(rows, heads):
    """Rows of q or k as the `llama` architecture stores them: half pairing to interleaved."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermute(rows, heads):
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def heads_of_rows(name, config):
    if config["model_type"] != "llama":
        return None
    if "q_proj" in name:
        return config["num_attention_heads"]
    return config["num_key_value_heads"] if "k_proj" in name else None


def finite_half(rng, shape):
    """Any finite half-precision numbers: of either sign, zeros and subnormals among them."""
    bits = rng.integers(0, 31 << 10, shape) | rng.integers(0, 2, shape) << 15
    return bits.astype("<u2").view("<f2")


HALVES = {  # byte offsets of d, and of m or dmin, in a block
    Block.Q4_0: [0], Block.Q4_1: [0, 2], Block.Q5_0: [0], Block.Q5_1: [0, 2], Block.Q8_0: [0],
    Block.IQ4_NL: [0], Block.Q2_K: [80, 82], Block.Q3_K: [108], Block.Q4_K: [0, 2],
    Block.Q5_K: [0, 2], Block.Q6_K: [208], Block.IQ4_XS: [0], Block.MXFP4: [],
}
CENTRE = {Block.Q2_K: 1.5, Block.Q4_K: 7.5, Block.Q5_K: 15.5}  # dmin/d for weights around zero


def random_blocks(block, count, rng):
    """Bytes of `count` blocks, anything that the type allows."""
    size = gguf.GGML_QUANT_SIZES[block][1]
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[block]:
        raw[:, at : at + 2] = finite_half(rng, (count, 1)).view(np.uint8)
    if block == Block.MXFP4:
        raw[:, 0] = np.minimum(raw[:, 0], 250)  # twelve times its scale stays finite
        raw[:2, 0] = [0, 1]  # the two subnormal scales
    return raw


def random_weights(block, shape, target, rng):
    """A [rows, bytes] array of blocks whose weights scatter around zero by about `target`."""
    size = gguf.GGML_QUANT_SIZES[block][0]
    raw = random_blocks(block, shape[0] * shape[1] // size, rng)
    if block == Block.Q2_K:  # a minimum for every scale
        raw[:, :16] = (raw[:, :16] & 15) * 17
    elif block in (Block.Q4_K, Block.Q5_K):
        raw[:, 8:12] = raw[:, 4:8]
        raw[:, 12:16] = (raw[:, 12:16] & 15) * 17

    def scale(d):
        for at, factor in zip(HALVES[block], [1, CENTRE.get(block, 0)]):
            raw[:, at : at + 2] = np.array([d * factor], "<f2").view(np.uint8)

    scale(1)
    scale(target / gguf.quants.dequantize(raw, block).std())
    return raw.reshape(shape[0], -1)


def encode(x, block, rng):
    """A tensor in blocks: quantised where the package can, else random of the same scatter."""
    if block == Block.F32:
        return x
    try:
        return gguf.quants.quantize(x, block)
    except NotImplementedError:
        return random_weights(block, x.shape, float(x.std()), rng)


def llama3_factors(config, scaling):
    """rope_freqs.weight as its files hold it: what every default frequency is divided by."""
    planes = config["head_dim"] // 2
    found = []
    for i in range(planes):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / planes)
        turns = scaling["original_max_position_embeddings"] / wavelength
        low, high, factor = (scaling[k] for k in ("low_freq_factor", "high_freq_factor", "factor"))
        smooth = min(max((turns - low) / (high - low), 0), 1)
        found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


GGUFS = {
    "gguf_llama": dict(
        about="GGUF, llama: float32, rows of q and k permuted, grouped heads, its own output",
        config=base("llama")),
    "gguf_llama_biases": dict(
        about="GGUF version 2, llama: biases on q, k, v and output (permuted with their rows), "
              "tied, head_dim 12 by key_length, data aligned to 64",
        config=base("llama", head_dim=12, attention_bias=True, tie_word_embeddings=True),
        version=2, alignment=64),
    "gguf_llama_32_blocks": dict(
        about="GGUF, llama: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, F16 and BF16 by turns",
        config=base("llama", hidden_size=64, intermediate_size=96, head_dim=16),
        blocks=[Block.Q5_1, Block.Q4_0, Block.Q4_1, Block.Q5_0, Block.Q8_0, Block.IQ4_NL,
                Block.MXFP4, Block.F16, Block.BF16]),
    "gguf_llama_256_blocks": dict(
        about="GGUF, llama: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K and IQ4_XS, and Q8_0 where 256 does not "
              "divide a width; one layer of width 256",
        config=base("llama", vocab_size=96, hidden_size=256, intermediate_size=256, head_dim=32,
                    num_hidden_layers=1),
        blocks=[Block.Q6_K, Block.Q4_K, Block.Q5_K, Block.Q3_K, Block.Q8_0, Block.Q2_K,
                Block.IQ4_XS, Block.Q4_K, Block.Q6_K]),
    "gguf_llama3_factors": dict(
        about="GGUF, llama: rope_freqs.weight divides the frequencies (llama3 scaling); tied",
        config=base("llama", head_dim=16, rope_theta=500.0, tie_word_embeddings=True),
        factors=LLAMA3),
    "gguf_qwen2": dict(
        about="GGUF, qwen2: biases on q, k and v, rows in their own order; tied; epsilon 0.02",
        config=base("qwen2", rms_norm_eps=0.02, rope_theta=1000000.0, tie_word_embeddings=True)),
    "gguf_qwen3": dict(
        about="GGUF, qwen3: norms on the heads of q and k, head_dim 16 where hidden/heads is 8; "
              "F16",
        config=base("qwen3", head_dim=16, rms_norm_eps=1e-6, rope_theta=1000000.0),
        blocks=[Block.F16]),
}


def write_gguf(path, case, state, rng):
    config, blocks = case["config"], case.get("blocks", [Block.F32])
    family = config["model_type"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, family)
    if "alignment" in case:
        writer.add_custom_alignment(case["alignment"])
    writer.add_name(path.parent.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if family == "llama":
        writer.add_rope_dimension_count(head_dim)
    turn = 0
    for name, x in state.items():
        x, block = x.numpy(), Block.F32
        heads = heads_of_rows(name, config)
        if x.ndim == 2:
            block, turn = blocks[turn % len(blocks)], turn + 1
        stored = encode(permute(x, heads) if heads else x, block, rng)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(stored), raw_dtype=block)
    if "factors" in case:
        writer.add_tensor("rope_freqs.weight", llama3_factors(config, case["factors"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if "version" in case:  # 2 and 3 have one layout
        data = bytearray(path.read_bytes())
        data[4:8] = struct.pack("<I", case["version"])
        path.write_bytes(data)


def read_gguf(path, config, names):
    """The float32 state of a file under its transformers names, and rope_freqs or None."""
    reader = gguf.GGUFReader(path)
    stored = {x.name: gguf.quants.dequantize(x.data, x.tensor_type).astype(np.float32)
              for x in reader.tensors}
    state = {}
    for name in names:
        x, heads = stored.pop(gguf_name(name)), heads_of_rows(name, config)
        state[name] = torch.from_numpy(np.array(unpermute(x, heads) if heads else x))
    factors = stored.pop("rope_freqs.weight", None)
    assert not stored, list(stored)
    return state, factors


def make_gguf(name):
    case = GGUFS[name]
    config = case["config"]

    def make(folder, rng):
        path = folder / "model.gguf"
        written = random_state(config, rng)
        write_gguf(path, case, written, rng)
        state, factors = read_gguf(path, config, written)
        if "blocks" not in case:
            assert all(torch.equal(state[n], written[n]) for n in written)
        model = reference(config, state)
        if factors is not None:
            model.model.rotary_emb.inv_freq /= torch.from_numpy(np.array(factors))
            assert_three_regimes(model, case["factors"]["factor"])
        return record(folder, model, case["about"], path.name, rng)

    attempt(name, make)


def make_gguf_blocks():
    """Blocks of every type with the floats they stand for, for comparison bit by bit."""
    folder, count = HERE / "gguf_blocks", 64
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rng = np.random.default_rng(zlib.crc32(b"gguf_blocks"))
    types = [Block.F16, Block.BF16, *HALVES]
    index = []
    for block in sorted(types):
        size, bytes_per_block = gguf.GGML_QUANT_SIZES[block]
        if block == Block.F16:
            raw, number = finite_half(rng, (32 * count,)), 32 * count
            floats = raw.astype("<f4")
        elif block == Block.BF16:
            raw, number = finite_half(rng, (32 * count,)).view("<u2"), 32 * count
            floats = (raw.astype("<u4") << 16).view("<f4")
        else:
            raw, number = random_blocks(block, count, rng), count
            floats = gguf.quants.dequantize(raw, block).astype("<f4")
        assert np.isfinite(floats).all() and floats.size == number * size, block
        (folder / f"{block.name}.blocks").write_bytes(raw.tobytes())
        (folder / f"{block.name}.floats").write_bytes(floats.tobytes())
        index.append({"type": block.name, "id": int(block), "weights_per_block": size,
                      "bytes_per_block": bytes_per_block, "blocks": number})
    rows = ",\n".join("  " + json.dumps(row) for row in index)
    (folder / "index.json").write_text(f"[\n{rows}\n]\n")


# --------------------------------------------------------------------------------------------------
# Long positions


def make_long_positions():
    """A model whose logits far out only double angles get right; the same at 0, for comparison."""
    config = base("llama", head_dim=16, max_position_embeddings=132000, rope_theta=500000.0,
                  tie_word_embeddings=True)

    def make(folder, rng):
        state = random_state(config, rng)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tidy(folder, state)
        model = reference(folder, state)
        tokens = [int(x) for x in rng.integers(3, config["vocab_size"], 16)]
        about = "llama: 16 tokens from position {}, computed in double from float32 frequencies"
        exact = in_double(model)
        far = logits_of(exact, tokens, 131000)
        error = np.abs(logits_of(model, tokens, 131000) - far).max() / spread(far)
        print(f"long_positions: float angles are off by {error:.1e} of the range")
        return error > 5 * TOLERANCE and all(
            record(folder, model, about.format(first), "folder", rng, first, tokens, exact, suffix)
            for first, suffix in [(131000, ""), (0, "_at_0")]
        )

    attempt("long_positions", make)


# --------------------------------------------------------------------------------------------------
# Frequencies


def make_dials():
    """Rotary frequencies exactly as the reference forms them, for comparison bit by bit."""
    rows = []
    for scaling in (None, (8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192)):
        for width in (64, 128, 20, 10):
            for theta in (1e4, 5e5, 1e6, 1e5):
                parameters = {"rope_theta": theta, "rope_type": "default"}
                if scaling:
                    parameters |= {"rope_type": "llama3"} | dict(zip(LLAMA3, scaling))
                config = transformers.LlamaConfig(
                    head_dim=width, max_position_embeddings=131072, rope_parameters=parameters)
                rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
                assert rotary.attention_scaling == 1
                default = rotary.compute_default_rope_parameters(config)[0].numpy()
                exponents = (np.arange(0, width, 2, dtype=np.float32) / np.float32(width))
                rounded = 1 / (theta ** exponents.astype(np.float64)).astype(np.float32)
                assert np.abs(rounded.view("i4") - default.view("i4")).max() <= 1
                rows.append({
                    "width": width,
                    "base": theta,
                    "scaling": dict(zip(LLAMA3, scaling)) if scaling else None,
                    "frequencies": [float(x) for x in rotary.inv_freq.numpy()],
                    "power_rounded_otherwise": np.nonzero(rounded != default)[0].tolist(),
                })
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    (HERE / "dials.json").write_text(f"[\n{body}\n]\n")


# --------------------------------------------------------------------------------------------------
# The sample checkpoint


PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]
WINDOW = 512  # tokens


def byte_level_tokenizer(reader):
    """The tokenizer of a GGUF whose `tokenizer.ggml.pre` is smollm."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    def field(name):
        return reader.fields["tokenizer.ggml." + name].contents()

    assert field("model") == "gpt2" and field("pre") == "smollm" and not field("add_bos_token")
    words = field("tokens")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(w, special=True) for w, kind in zip(words, field("token_type")) if kind == 3])
    return tokenizer


def make_smollm2(path, text, output):
    reader = gguf.GGUFReader(path)

    def field(name):
        return reader.fields["llama." + name].contents()

    config = base(
        "llama",
        vocab_size=field("vocab_size"),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_theta=field("rope.freq_base"),
        tie_word_embeddings=True,
    )
    assert field("rope.dimension_count") * config["num_attention_heads"] == config["hidden_size"]
    state, factors = read_gguf(path, config, [name for name, _ in shapes(config)])
    assert factors is None
    model = reference(config, state)
    tokenizer = byte_level_tokenizer(reader)

    def encode_text(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    prompts, end = [], reader.fields["tokenizer.ggml.eos_token_id"].contents()
    for prompt in PROMPTS:
        tokens = encode_text(prompt)
        following, lead = greedy(model, tokens, 64)
        prompts.append({"prompt": prompt, "tokens": tokens, "greedy": following,
                        "ends_at": following.index(end) if end in following else None,
                        "text": tokenizer.decode(following, skip_special_tokens=False),
                        "least_lead": round(lead, 5)})
        print(json.dumps(prompts[-1]["text"]), "least lead", lead)
    expected = {"description": "SmolLM2-135M-Instruct.Q4_1.gguf, its values in float32",
                "source": path.name, "prompts": prompts}

    if text:
        tokens = encode_text(text.read_text(encoding="utf-8"))
        sums, counts = [], []
        for at in range(0, len(tokens), WINDOW):
            window = tokens[at : at + WINDOW]
            if len(window) < 2:
                break
            rows = torch.from_numpy(logits_of(model, window)[:-1]).double().log_softmax(-1)
            sums.append(-float(rows[torch.arange(len(window) - 1), window[1:]].sum()))
            counts.append(len(window) - 1)
        full = len(tokens) // WINDOW

        def figure(windows):
            nats, predicted = sum(sums[:windows]), sum(counts[:windows])
            return {"windows": windows, "predicted": predicted, "nats": round(nats, 4),
                    "perplexity": round(math.exp(nats / predicted), 6)}

        expected["perplexity"] = {
            "text": text.name, "text_tokens": len(tokens), "window": WINDOW,
            "first_8_windows": figure(8), "full_windows": figure(full),
            "with_the_short_last_window": figure(len(sums)),
            "nats_by_window": [round(x, 4) for x in sums],
        }
        print({k: v for k, v in expected["perplexity"].items() if k != "nats_by_window"})
    folder = HERE / "smollm2"
    folder.mkdir(exist_ok=True)
    (folder / "expected.json").write_text(one_line_lists(expected) + "\n")

    if output:
        output.mkdir(parents=True, exist_ok=True)
        tidy(output, state)
        (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
        (output / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
        tokenizer.save(str(output / "tokenizer.json"))


def main(arguments):
    if arguments[:1] == ["smollm2"]:
        output = None
        if "--folder" in arguments:
            at = arguments.index("--folder")
            output = pathlib.Path(arguments[at + 1])
            del arguments[at : at + 2]
        paths = [pathlib.Path(x) for x in arguments[1:]]
        if len(paths) not in (1, 2):
            raise SystemExit(__doc__)
        return make_smollm2(paths[0], paths[1] if len(paths) > 1 else None, output)
    makers = {name: lambda name=name: make_folder(name) for name in FOLDERS}
    makers |= {name: lambda name=name: make_gguf(name) for name in GGUFS}
    makers |= {"gguf_blocks": make_gguf_blocks, "long_positions": make_long_positions,
               "dials": make_dials}
    unknown = [name for name in arguments if name not in makers]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are: {', '.join(makers)}")
    for name in arguments or makers:
        makers[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
