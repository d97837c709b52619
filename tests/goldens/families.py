#!/usr/bin/env python3
"""Makes the goldens of the families and scalings beyond those of make.py, under its conditions.

    families.py [NAME...]          all of them, or those named

A golden is written to its folder beside this file if that exists, and else to `pending`, where it
waits for the converter to know its family: moving the folder up is all it takes then.

Weights come from the reference's own model, filled at random, and are saved under the names that
its checkpoints have; `config.json` is spelled as such checkpoints spell it. The reference is the
folder read back by transformers.
"""

import contextlib
import copy
import json
import math
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.bloom import modeling_bloom

from make import ABSENT, CONTINUATION, HERE, TOLERANCE, attempt, keep, spread, tidy

PROMPT = 40  # tokens

torch.set_num_threads(1)
transformers.logging.disable_progress_bar()


# --------------------------------------------------------------------------------------------------
# Random models


def fill(model, rng):
    """Random weights, scattered as in make.py: norms around 1, queries and keys large."""
    family = model.config.model_type
    centred = family.startswith("gemma")  # norms multiply by 1 + w
    for name, parameter in model.named_parameters():
        x = rng.standard_normal(parameter.shape)
        if name.endswith("bias"):
            x *= 0.3
        elif "norm" in name or ".ln_" in name or x.ndim == 1:
            of_heads = any(part in name for part in ("q_norm", "k_norm", "q_layernorm",
                                                     "k_layernorm"))
            x = (1.6 if of_heads else 1.0) * (1 + 0.25 * x) - centred
        else:
            transposed = family == "gpt2" and ".h." in name
            width = x.shape[0] if transposed else x.shape[-1]
            queries = ("q_proj", "k_proj", "qkv", "query_key_value", "c_attn")
            x *= (1.7 if any(part in name for part in queries) else 1.3) / math.sqrt(width)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(x))


def checkpoint(model):
    """The tensors of a model under the names that its checkpoints have."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


# --------------------------------------------------------------------------------------------------
# The reference


@torch.no_grad()
def logits_of(model, tokens):
    # Dynamic scaling remembers the longest sequence: a copy has seen none.
    model = copy.deepcopy(model) if "dynamic" in str(model.config) else model
    inputs = alibi_inputs(model.slopes, len(tokens)) if hasattr(model, "slopes") else {}
    return model(torch.tensor([tokens]), use_cache=False, **inputs).logits[0].numpy()


def alibi_inputs(slopes, tokens):
    """What makes a llama one with ALiBi: no rotation, and a mask that has the biases."""
    distances = torch.arange(tokens) - torch.arange(tokens)[:, None]
    mask = slopes.to(torch.get_default_dtype())[:, None, None] * distances
    return {"position_ids": torch.zeros(1, tokens, dtype=torch.long),
            "attention_mask": mask.masked_fill(distances > 0, -1e9)[None]}


class Doubles(torch.overrides.TorchFunctionMode):
    """Makes every computation that asks for float32 one in float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wide(x):
            return torch.float64 if x is torch.float32 else x

        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(wide, args), **{k: wide(x) for k, x in (kwargs or {}).items()})


def logits_in_double(model, tokens):
    """Those of the same model in float64 throughout, its frequencies still those of float32."""
    model = copy.deepcopy(model).double()
    torch.set_default_dtype(torch.float64)
    try:
        with Doubles():
            return logits_of(model, tokens)
    finally:
        torch.set_default_dtype(torch.float32)


def greedy(model, tokens):
    """The continuation, and the least lead of a winner over its runner-up."""
    tokens, lead = list(tokens), math.inf
    for _ in range(CONTINUATION):
        last = np.sort(row := logits_of(model, tokens)[-1])
        lead = min(lead, float(last[-1] - last[-2]))
        tokens.append(int(row.argmax()))
    return tokens[-CONTINUATION:], lead


# --------------------------------------------------------------------------------------------------
# Faults


def changed(model, change):
    """The model with the same weights and another configuration; change(config) alters it."""
    config = copy.deepcopy(model.config)
    change(config)
    wrong = type(model)._from_config(config, dtype=torch.float32).eval()
    wrong.load_state_dict(model.state_dict(), strict=False)
    return wrong


def rotary_parameters(config):
    """The dictionaries of a configuration that each describe one dial."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(x, dict) for x in parameters.values()):
        return [x for x in parameters.values() if isinstance(x, dict)]
    return [parameters] if parameters else []


def raise_base(config):
    for parameters in rotary_parameters(config):
        parameters["rope_theta"] *= 1.1


def leave_out_scaling(config):
    for parameters in rotary_parameters(config):
        kept = ("rope_theta", "partial_rotary_factor", "llama_4_scaling_beta",
                "original_max_position_embeddings")
        for key in set(parameters) - set(kept):
            del parameters[key]
        parameters["rope_type"] = "default"


def with_small_epsilon(config):
    for key in EPSILONS:
        if hasattr(config, key):
            setattr(config, key, 1e-5)


def with_wider_window(config):
    config.sliding_window += 1


def setting(**values):
    """A change of a configuration that sets these of its attributes."""

    def change(config):
        for key, value in values.items():
            setattr(config, key, value)

    return change


def setting_dial(**values):
    def change(config):
        for parameters in rotary_parameters(config):
            parameters.update(values)

    return change


EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")


def stretched(model, factor):
    """A context in which rotary positions are multiplied by a factor."""
    stack = contextlib.ExitStack()
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            forward = module.forward

            def wrong(x, position_ids, *more, forward=forward, **named):
                return forward(x, position_ids * factor, *more, **named)

            stack.enter_context(mock.patch.object(module, "forward", wrong))
    return stack


ALIBI = {"bloom": "_get_alibi_slopes", "mpt": "build_mpt_alibi_tensor",
         "falcon": "build_alibi_tensor"}


def with_slopes(model, factors):
    """A context in which each head's slope is multiplied by its factor."""
    source, name = sys.modules[type(model).__module__], ALIBI[model.config.model_type]
    build = getattr(source, name)

    def wrong(*arguments, **named):
        right = build(*arguments, **named)
        return right * factors.reshape(-1, *[1] * (right.ndim - 1))

    return mock.patch.object(source, name, wrong)


def disturbances(model, tokens, logits, faults):
    """How far logits move, in ranges, when positions, windows or norms are a little wrong.

    `faults`: those that a golden has beside the general ones, changes of a configuration by name.
    """
    config, found = model.config, {}

    def moved(name, wrong):
        found[name] = float(np.abs(logits_of(wrong, tokens) - logits).max()) / spread(logits)

    if hasattr(model, "slopes"):
        heads = config.num_attention_heads
        for name, slopes in [("slopes 1.1", model.slopes * 1.1),
                             ("one geometric row of slopes",
                              2.0 ** (-8 / heads * torch.arange(1, heads + 1)))]:
            wrong = copy.deepcopy(model)
            wrong.slopes = slopes
            moved(name, wrong)
        return found
    rotary = any(type(x).__name__.endswith("RotaryEmbedding") for x in model.modules())
    dials = rotary_parameters(config) if rotary and not getattr(config, "alibi", False) else []
    if dials:
        wrong = copy.deepcopy(model)
        with stretched(wrong, 1.1):
            moved("stretch 1.1", wrong)
        faults = {"base 1.1": raise_base} | faults
    in_context = "dynamic" in str(dials) and len(tokens) <= config.max_position_embeddings
    if any(x["rope_type"] != "default" for x in dials) and not in_context:
        faults = {"no scaling": leave_out_scaling} | faults
    if any(getattr(config, key, None) and getattr(config, key) > 1e-3 for key in EPSILONS):
        faults = {"epsilon": with_small_epsilon} | faults
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        faults = {"window + 1": with_wider_window} | faults
    if config.model_type == "bloom" or config.model_type == "mpt" or getattr(config, "alibi", 0):
        heads = getattr(config, "num_attention_heads", None) or config.n_head
        with with_slopes(model, torch.full((heads,), 1.1)):
            moved("slopes 1.1", model)
        if heads & (heads - 1):
            naive = 2.0 ** (-8 / heads * torch.arange(1, heads + 1))
            with with_slopes(model, naive / modeling_bloom._get_alibi_slopes(heads, None)):
                moved("one geometric row of slopes", model)
    for key, table in model.state_dict().items():
        if key.endswith(("wpe.weight", "embed_positions.weight")):
            wrong = copy.deepcopy(model)
            wrong.get_parameter(key).data = table.roll(1, 0)
            moved("table one row off", wrong)
    if config.model_type == "gptj":
        planes = config.rotary_dim // 2
        exponents = torch.arange(planes) / planes
        for name, factor in [("stretch 1.1", 1.1), ("base 1.1", 1.1**-exponents)]:
            wrong = copy.deepcopy(model)
            for module in wrong.modules():
                if hasattr(module, "embed_positions"):
                    angles = torch.arange(len(module.embed_positions))[:, None] \
                        * 10000.0**-exponents * factor
                    table = torch.cat((angles.sin(), angles.cos()), -1)
                    assert table.shape == module.embed_positions.shape
                    module.embed_positions = table
            moved(name, wrong)
    for name, change in faults.items():
        moved(name, changed(model, change))
    return found


def record(folder, model, case, rng, prompt, suffix, save, source="folder"):
    """Writes logits.npy and expected.json; False when some margin is too small for a fair test."""
    tokens = [int(x) for x in rng.integers(3, model.config.vocab_size, prompt)]
    following, lead = case.get("greedy", greedy)(model, tokens)
    logits = logits_of(model, tokens)
    if len(set(following)) < 4 or lead < 20 * TOLERANCE * spread(logits):
        return False  # keep() would say so too, but later
    save()
    found = disturbances(model, tokens, logits, case.get("faults", {}))
    more = {"context": case["context"]} if "context" in case else {}
    return keep(folder, case["about"], source, tokens, logits, logits_in_double(model, tokens),
                following, lead, found, suffix=suffix, **more)


# --------------------------------------------------------------------------------------------------
# Families


def config_of(architecture, model_type, **keys):
    """A config.json as its files have it; a key of ABSENT is left out."""
    config = {"architectures": [architecture], "model_type": model_type, "vocab_size": 96,
              "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16"} | keys
    return {key: value for key, value in config.items() if value is not ABSENT}


def gated(architecture, model_type, **keys):
    """The keys of the families that have llama's."""
    return config_of(architecture, model_type, **{
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False} | keys)


def layer_norms(keys, epsilon=0.02):
    return {"rms_norm_eps": ABSENT, "layer_norm_eps": epsilon} | keys


def gpt2(**keys):
    return config_of("GPT2LMHeadModel", "gpt2", **{
        "n_positions": 64, "n_ctx": 64, "n_embd": 30, "n_layer": 2, "n_head": 6,
        "activation_function": "gelu_new", "layer_norm_epsilon": 0.02} | keys)


def gpt_neox(**keys):
    return config_of("GPTNeoXForCausalLM", "gpt_neox", **{
        "hidden_size": 48, "intermediate_size": 52, "num_hidden_layers": 2, "vocab_size": 80,
        "num_attention_heads": 3, "hidden_act": "gelu", "layer_norm_eps": 0.02,
        "max_position_embeddings": 256, "rotary_pct": 0.25, "rotary_emb_base": 100,
        "use_parallel_residual": True, "tie_word_embeddings": False} | keys)


def opt(**keys):
    return config_of("OPTForCausalLM", "opt", **{
        "hidden_size": 36, "ffn_dim": 56, "num_hidden_layers": 2, "num_attention_heads": 3,
        "word_embed_proj_dim": 36, "activation_function": "relu", "do_layer_norm_before": True,
        "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 2, "dropout": 0.1} | keys)


def bloom(**keys):
    return config_of("BloomForCausalLM", "bloom", **{
        "hidden_size": 42, "n_layer": 2, "n_head": 6, "layer_norm_epsilon": 0.02,
        "apply_residual_connection_post_layernorm": False, "vocab_size": 80} | keys)


def mpt(attention, **keys):
    return config_of("MPTForCausalLM", "mpt", **{
        "d_model": 30, "n_heads": 10, "n_layers": 2, "expansion_ratio": 4, "max_seq_len": 64,
        "no_bias": True, "learned_pos_emb": True, "layer_norm_epsilon": 0.02,
        "norm_type": "low_precision_layernorm", "vocab_size": 80,
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention",
                        "clip_qkv": None, "softmax_scale": None, "qk_ln": False,
                        "prefix_lm": False} | attention} | keys)


def falcon(**keys):
    return config_of("FalconForCausalLM", "falcon", **{
        "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6,
        "layer_norm_epsilon": 0.02, "alibi": False, "bias": False, "parallel_attn": True,
        "multi_query": True, "new_decoder_architecture": False,
        "max_position_embeddings": 256, "rope_theta": 10000.0, "vocab_size": 80} | keys)


def phi(**keys):
    return gated("PhiForCausalLM", "phi", **layer_norms({
        "hidden_size": 40, "num_key_value_heads": None, "hidden_act": "gelu_new",
        "rope_theta": 100.0, "partial_rotary_factor": 0.4} | keys))


def phi3(**keys):
    return gated("Phi3ForCausalLM", "phi3", **{"rms_norm_eps": 0.02, "pad_token_id": 3} | keys)


def stablelm(**keys):
    return gated("StableLmForCausalLM", "stablelm", **layer_norms({
        "hidden_size": 64, "intermediate_size": 32, "vocab_size": 64,
        "num_key_value_heads": 4, "rope_theta": 100.0,
        "partial_rotary_factor": 0.25, "use_qkv_bias": False} | keys))


def gemma(architecture, model_type, **keys):
    return gated(architecture, model_type, **{
        "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 40, "hidden_act": ABSENT,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
        "torch_dtype": "float32",  # in which the root of the width is not rounded
    } | keys)


def gemma2(**keys):
    return gemma("Gemma2ForCausalLM", "gemma2", **{
        "query_pre_attn_scalar": 24, "sliding_window": 12, "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 6.0, "cache_implementation": "hybrid"} | keys)


def gemma3(**keys):
    return gemma("Gemma3ForCausalLM", "gemma3_text", **{
        "num_hidden_layers": 3, "query_pre_attn_scalar": 24, "sliding_window": 12,
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "rope_theta": 1000.0,
        "rope_local_base_freq": 100.0, "sliding_window_pattern": 3,
        "rope_scaling": {"factor": 4.0, "rope_type": "linear"}} | keys)


def cohere(architecture, model_type, **keys):
    return gated(architecture, model_type, **layer_norms({
        "logit_scale": 0.75, "tie_word_embeddings": True, "bos_token_id": 5, "eos_token_id": 2,
        "pad_token_id": 0} | keys))


def glm(architecture, model_type, **keys):
    return gated(architecture, model_type, **{
        "head_dim": 12, "attention_bias": True, "partial_rotary_factor": 0.5,
        "rope_theta": 1000.0, "rms_norm_eps": 1.5625e-07, "pad_token_id": 3} | keys)


def ministral3(dial, **keys):
    return gated("Ministral3ForCausalLM", "ministral3", **{
        "head_dim": 12, "sliding_window": None, "rope_theta": ABSENT,
        "rope_parameters": {
            "type": "yarn", "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
            "original_max_position_embeddings": 16, "max_position_embeddings": 64,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.4} | dial,
        "max_position_embeddings": 64} | keys)


def llama4(**keys):
    return gated("Llama4ForCausalLM", "llama4_text", **{
        "head_dim": 12, "num_hidden_layers": 4, "intermediate_size": 24,
        "intermediate_size_mlp": 32, "rope_theta": 1000.0, "rms_norm_eps": 0.02, "vocab_size": 80,
        "moe_layers": [], "interleave_moe_layer_step": 1, "num_local_experts": 3,
        "num_experts_per_tok": 1, "use_qk_norm": True, "attention_chunk_size": 12,
        "attn_temperature_tuning": True, "floor_scale": 8, "attn_scale": 0.5,
        "router_aux_loss_coef": 0.001, "output_router_logits": False} | keys)


def scaled(scaling, family="llama", **keys):
    """A llama or qwen2 whose rope_scaling, spelled as in transformers 4, is this."""
    architecture = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[family]
    return gated(architecture, family, **{
        "head_dim": 16 if family == "llama" else ABSENT, "intermediate_size": 32,
        "vocab_size": 80, "rope_theta": 1000.0, "rope_scaling": scaling,
        "tie_word_embeddings": True} | keys)


def longrope(**keys):
    return phi3(**{
        "vocab_size": 80, "intermediate_size": 32, "max_position_embeddings": 128,
        "original_max_position_embeddings": 32, "rope_theta": 1000.0, "sliding_window": None,
        "tie_word_embeddings": True,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5],
                         "long_factor": [1.0, 1.9, 3.7, 6.0]}} | keys)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}


def scaled_cases():
    """Scalings on part of a head (phi, gpt_neox) and on interleaved pairs (cohere, glm)."""

    def wide_glm(scaling, **keys):
        return glm("GlmForCausalLM", "glm", head_dim=24, hidden_size=32, intermediate_size=32,
                   vocab_size=80, rope_scaling=scaling, **keys)

    def wide_phi(scaling, **keys):
        return phi(hidden_size=48, num_attention_heads=3, intermediate_size=40, vocab_size=64,
                   partial_rotary_factor=0.75, rope_theta=1000.0, rope_scaling=scaling, **keys)

    def neox(scaling, **keys):
        return gpt_neox(rotary_pct=0.5, rotary_emb_base=1000, rope_scaling=scaling, **keys)

    def command(scaling, **keys):
        return cohere("CohereForCausalLM", "cohere", use_qk_norm=False, head_dim=ABSENT,
                      hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                      intermediate_size=32, vocab_size=80, rope_scaling=scaling,
                      layer_norm_eps=1e-5, **{"rope_theta": 1000.0} | keys)

    long = {"max_position_embeddings": 32}
    partly = {"full width": full_width}
    cases = {}
    for name, scaling, says in [
            ("linear", {"rope_type": "linear", "factor": 4.0}, "linear scaling by 4"),
            ("yarn", YARN, "YaRN by 4 from 32"), ("llama3", LLAMA3, "llama3 scaling by 8 from 32"),
            ("dynamic", DYNAMIC, "dynamic scaling by 4 of a trained context of 32")]:
        more = long if name == "dynamic" else {}
        by_length = dict(greedy=greedy_at_full_length, context=64) if name == "dynamic" else {}
        cases |= {
            f"phi_partial_{name}": dict(
                about=f"phi: {says} on 12 of 16", config=wide_phi(scaling, **more),
                faults=partly) | by_length,
            f"cohere_{name}": dict(
                about=f"cohere: {says} on interleaved pairs", config=command(scaling, **more))
            | by_length,
            f"glm_{name}": dict(
                about=f"glm: {says} on interleaved pairs of the first 12 of 24",
                config=wide_glm(scaling, **more), faults=partly) | by_length,
        }
    cases |= {
        "gpt_neox_partial_linear": dict(
            about="gpt_neox: linear scaling by 2 on 8 of 16",
            config=neox({"type": "linear", "factor": 2.0}), faults=partly),
        "gpt_neox_partial_dynamic": dict(
            about="gpt_neox: dynamic scaling by 2 of a trained context of 32 on 8 of 16",
            config=neox({"type": "dynamic", "factor": 2.0}, **long), faults=partly,
            greedy=greedy_at_full_length, context=64),
        "cohere_longrope": dict(
            about="cohere: LongRoPE on interleaved pairs, past its switch at 32",
            config=command({"rope_type": "longrope", "factor": 4.0,
                            "original_max_position_embeddings": 32,
                            "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
                            "long_factor": [1.0, 1.4, 1.9, 2.7, 3.7, 6.0, 7.0, 8.0]},
                           max_position_embeddings=128)),
        "cohere_proportional": dict(
            about="cohere: proportional scaling by 2 on the first half of interleaved pairs",
            config=command(ABSENT, rope_theta=ABSENT, rope_parameters={
                "rope_type": "proportional", "rope_theta": 1000.0, "factor": 2.0,
                "partial_rotary_factor": 0.5})),
        "phi3_longrope_su": dict(
            about="phi3: the model of phi3_longrope, its scaling called su",
            seed="phi3_longrope", prompts={"": 40},
            config=longrope(rope_scaling=longrope()["rope_scaling"] | {"type": "su"}),
            reference=longrope()),
    }
    return cases


def greedy_at_full_length(model, tokens):
    """The continuation when dynamic scaling counts the tokens to come from the start."""
    model = copy.deepcopy(model)
    rotary = model.base_model.rotary_emb
    end = len(tokens) + CONTINUATION
    rotary(torch.zeros(1), torch.arange(end)[None])  # grows to the full length, and stays there
    rotary.original_max_seq_len = 0
    tokens, lead = list(tokens), math.inf
    for _ in range(CONTINUATION):
        with torch.no_grad():
            row = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy()
        last = np.sort(row)
        lead = min(lead, float(last[-1] - last[-2]))
        tokens.append(int(row.argmax()))
    return tokens[-CONTINUATION:], lead


def without_layer_types(config):
    """Rotary positions on every layer that has none."""
    config.no_rope_layers = [1] * config.num_hidden_layers


def without_rotation(config):
    config.no_rope_layers = [0] * config.num_hidden_layers


def all_sliding(config):
    config.layer_types = ["sliding_attention"] * config.num_hidden_layers


def one_base(config):
    for parameters in rotary_parameters(config):
        parameters["rope_theta"] = 1000.0


def without_prefix(prefix, **stray):
    """Tensor names without their prefix, as the first files of some families have them."""

    def rename(state):
        return {name.removeprefix(prefix): x for name, x in state.items()} | stray

    return rename


def baichuan(state):
    """A llama's tensors as Baichuan has them: q, k and v in one."""
    joined = {}
    for name, x in state.items():
        if "q_proj" in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            joined[name.replace("q_proj", "W_pack")] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name:
            joined[name] = x
    return joined


def baichuan_cases():
    """Baichuan is not in transformers: a llama with its weights, and ALiBi in its mask for 13B."""
    shape = {"hidden_size": 36, "intermediate_size": 52, "num_attention_heads": 6,
             "num_key_value_heads": ABSENT}
    cases = {}
    for name, about, limit in [
            ("baichuan_7b", "rotary", {}),
            ("baichuan_13b", "six heads of ALiBi", {"max_position_embeddings": ABSENT,
                                                    "model_max_length": 64})]:
        cases[name] = dict(
            about=f"baichuan ({name[9:].upper()}'s shape): W_pack holds q, k and v; {about}; the "
                  "reference is transformers' llama, arranged after descriptions of the family",
            config=gated("BaichuanForCausalLM", "baichuan",
                         **shape | {"rope_theta": ABSENT} | limit),
            reference=gated("LlamaForCausalLM", "llama", **shape), rename=baichuan)
    cases["baichuan_13b"]["alibi_heads"] = 6
    return cases


def full_width(config):
    for parameters in rotary_parameters(config):
        parameters["partial_rotary_factor"] = 1.0


CASES = {
    "gpt2": dict(
        about="gpt2: learned positions, transposed weights, six heads; names without "
              "`transformer.`, masks kept as tensors; tied; epsilon 0.02",
        config=gpt2(n_inner=None),
        rename=without_prefix("transformer.", **{
            f"h.{i}.attn.bias": torch.tril(torch.ones(1, 1, 8, 8)) for i in (0, 1)})),
    "gpt2_scaled_by_layer": dict(
        about="gpt2: n_inner 52, attention divided by the layer's number, three layers",
        config=gpt2(n_inner=52, n_layer=3, scale_attn_by_inverse_layer_idx=True),
        faults={"layers alike": setting(scale_attn_by_inverse_layer_idx=False)}),
    "gpt_neox_parallel": dict(
        about="gpt_neox: parallel residual, rotary_pct 0.25 of 16, base 100, rows of each head's "
              "q, k and v together; epsilon 0.02",
        config=gpt_neox(), faults={"full width": full_width}),
    "gpt_neox_spelling_5": dict(
        about="gpt_neox: the model of gpt_neox_parallel, positions spelled as in transformers 5",
        seed="gpt_neox_parallel",
        config=gpt_neox(rotary_pct=ABSENT, rotary_emb_base=ABSENT, rope_parameters={
            "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25}),
        faults={"full width": full_width}),
    "gpt_neox_sequential": dict(
        about="gpt_neox: sequential residual, rotary_pct 0.375, base 500",
        config=gpt_neox(use_parallel_residual=False, rotary_pct=0.375, rotary_emb_base=500),
        faults={"full width": full_width, "parallel": setting(use_parallel_residual=True)}),
    "gptj": dict(
        about="gptj: interleaved pairs on the first 8 of 12, parallel residual, biased head",
        config=config_of("GPTJForCausalLM", "gptj", n_positions=64, n_embd=36, n_layer=2, n_head=3,
                         n_inner=52, rotary_dim=8, rotary=True, activation_function="gelu_new",
                         layer_norm_epsilon=0.02, tie_word_embeddings=False)),
    "opt": dict(
        about="opt: learned positions from row 2, norms first, relu",
        config=opt()),
    "opt_no_biases": dict(
        about="opt (Galactica's shape): no biases, norms without weights, gelu",
        config=opt(enable_bias=False, layer_norm_elementwise_affine=False,
                   activation_function="gelu")),
    "opt_norms_after": dict(
        about="opt: norms after the branches, no final norm, embeddings of 20 projected to 36 and "
              "back",
        config=opt(do_layer_norm_before=False, word_embed_proj_dim=20)),
    "bloom": dict(
        about="bloom: six heads of ALiBi, a norm on embeddings, rows of each head's q, k and v "
              "together; names without `transformer.`; tied",
        config=bloom(), rename=without_prefix("transformer.")),
    "bloom_residual_after_norm": dict(
        about="bloom: twelve heads of ALiBi; the residual starts from the norm's output",
        config=bloom(n_head=12, hidden_size=36, apply_residual_connection_post_layernorm=True),
        faults={"residual before norm": setting(apply_residual_connection_post_layernorm=False)}),
    "mpt": dict(
        about="mpt: ten heads of ALiBi, norms without bias, tied",
        config=mpt({})),
    "mpt_clipped": dict(
        about="mpt: six heads, q, k and v clipped to 1.5, softmax_scale 0.4",
        config=mpt({"clip_qkv": 1.5, "softmax_scale": 0.4}, n_heads=6),
        faults={"no clipping": lambda c: setattr(c.attn_config, "clip_qkv", None),
                "default scale": lambda c: setattr(c.attn_config, "softmax_scale", None)}),
    "falcon_multi_query": dict(
        about="falcon (7B's shape): one key/value head, one norm before both branches",
        config=falcon()),
    "falcon_grouped": dict(
        about="falcon (40B's shape): new_decoder_architecture, two key/value heads, a norm before "
              "each branch",
        config=falcon(new_decoder_architecture=True, num_kv_heads=2, multi_query=False)),
    "falcon_grouped_one_norm": dict(
        about="falcon (11B's shape): new_decoder_architecture with num_ln_in_parallel_attn 1, "
              "ffn_hidden_size 56",
        config=falcon(new_decoder_architecture=True, num_kv_heads=3, num_ln_in_parallel_attn=1,
                      ffn_hidden_size=56)),
    "falcon_alibi": dict(
        about="falcon (RW's shape): eight heads of ALiBi divided by the root of head_dim, biases, "
              "sequential; scaled dot product attention, since eager adds ALiBi twice",
        config=falcon(alibi=True, bias=True, parallel_attn=False, multi_query=False,
                      num_attention_heads=8, hidden_size=32), attention="sdpa"),
    "falcon_alibi_12_heads": dict(
        about="falcon: twelve heads of ALiBi, slopes and biases exact where the reference rounds "
              "them to bfloat16; scaled dot product attention",
        config=falcon(alibi=True, bias=True, parallel_attn=False, multi_query=False,
                      num_attention_heads=12, ffn_hidden_size=52, hidden_size=48),
        attention="sdpa", exact_alibi=True),
    "phi": dict(
        about="phi: partial_rotary_factor 0.4 of 10, parallel residual, "
              "biases everywhere, the head too",
        config=phi(), faults={"full width": full_width}),
    "phi_query_key_norms": dict(
        about="phi: qk_layernorm, partial_rotary_factor 0.5 of 12, two key/value heads",
        config=phi(hidden_size=48, vocab_size=80, qk_layernorm=True, num_key_value_heads=2,
                   partial_rotary_factor=0.5),
        faults={"full width": full_width}),
    "phi3": dict(
        about="phi3: fused q, k, v and fused gate, up; a window of 16; epsilon 0.02",
        config=phi3(sliding_window=16, rope_scaling=None,
                    original_max_position_embeddings=256)),
    "phi3_partial": dict(
        about="phi3 (Phi-4-mini's shape): partial_rotary_factor 0.75 of 8, tied",
        config=phi3(sliding_window=None, partial_rotary_factor=0.75, tie_word_embeddings=True,
                    rope_scaling=None, original_max_position_embeddings=256),
        faults={"full width": full_width}),
    "gemma": dict(
        about="gemma: norms of 1 + w, embeddings times the root of 32, head_dim 16 where "
              "hidden/heads is 8, one key/value head; hidden_activation",
        config=gemma("GemmaForCausalLM", "gemma", rms_norm_eps=0.02)),
    "gemma_hidden_act": dict(
        about="gemma: only hidden_act, which says gelu and means its tanh form",
        config=gemma("GemmaForCausalLM", "gemma", hidden_act="gelu", hidden_activation=ABSENT,
                     num_key_value_heads=2)),
    "gemma2": dict(
        about="gemma2: four norms, soft caps of 4 on scores and 6 on logits, a window of 12 on the "
              "first of two layers, query_pre_attn_scalar 24 where head_dim is 16",
        config=gemma2(),
        faults={"no cap on scores": setting(attn_logit_softcapping=None),
                "no cap on logits": setting(final_logit_softcapping=None),
                "scale by head_dim": setting(query_pre_attn_scalar=16),
                "both slide": all_sliding}),
    "gemma2_three_layers": dict(
        about="gemma2: three layers, of which the first and last slide; no cap on logits, "
              "epsilon 0.02",
        config=gemma2(num_hidden_layers=3, num_key_value_heads=2, final_logit_softcapping=None,
                      attn_logit_softcapping=3.0, rms_norm_eps=0.02, intermediate_size=32),
        faults={"no cap on scores": setting(attn_logit_softcapping=None)}),
    "gemma3_spelling_4": dict(
        about="gemma3 text: norms on q and k, two bases (1000, scaled linearly by 4, on the third "
              "layer; 100 on the sliding ones), positions spelled as in transformers 4",
        seed="gemma3_spelling", config=gemma3(),
        faults={"one base": one_base, "all slide": all_sliding}),
    "gemma3_spelling_5": dict(
        about="gemma3 text: the model of gemma3_spelling_4, positions spelled as in transformers 5 "
              "(layer_types, a dial for each in rope_parameters)",
        seed="gemma3_spelling",
        config=gemma3(
            rope_theta=ABSENT, rope_local_base_freq=ABSENT, rope_scaling=ABSENT,
            sliding_window_pattern=ABSENT, torch_dtype=ABSENT, dtype="float32",
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
        faults={"one base": one_base, "all slide": all_sliding}),
    "gemma3_seven_layers": dict(
        about="gemma3 text: the default pattern, whose sixth layer of seven is full; caps on "
              "scores given and not applied, a cap on logits applied; no rope_scaling",
        config=gemma3(num_hidden_layers=7, intermediate_size=24, sliding_window_pattern=ABSENT,
                      rope_scaling=None, attn_logit_softcapping=2.0, final_logit_softcapping=6.0,
                      vocab_size=80, hidden_size=24, head_dim=8),
        faults={"one base": one_base, "all slide": all_sliding,
                "no cap on logits": setting(final_logit_softcapping=None)}),
    "stablelm": dict(
        about="stablelm: norms with biases, biases on q, k and v, partial_rotary_factor 0.25 of "
              "16; sequential; epsilon 0.02",
        config=stablelm(use_qkv_bias=True), faults={"full width": full_width}),
    "stablelm_parallel_norms": dict(
        about="stablelm: parallel residual without a second norm, a norm for each head of q and k, "
              "two key/value heads",
        config=stablelm(use_parallel_residual=True, qk_layernorm=True, num_key_value_heads=2,
                        partial_rotary_factor=0.5),
        faults={"full width": full_width}),
    "smollm3": dict(
        about="smollm3: four layers, the last without positions by default; tied",
        config=gated("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=4, rope_theta=5000.0,
                     intermediate_size=32, tie_word_embeddings=True, pad_token_id=0),
        faults={"all rotate": without_layer_types, "none rotates": without_rotation}),
    "smollm3_named_layers": dict(
        about="smollm3: no_rope_layers [0, 1, 0], where 1 means rotary; its own head",
        config=gated("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=3,
                     no_rope_layers=[0, 1, 0], intermediate_size=32, pad_token_id=0),
        faults={"all rotate": without_layer_types,
                "the others rotate": setting(no_rope_layers=[1, 0, 1])}),
    "granite": dict(
        about="granite: embeddings times 3, scores times 0.5, branches times 0.4, logits divided "
              "by 1.5",
        config=gated("GraniteForCausalLM", "granite", embedding_multiplier=3.0,
                     attention_multiplier=0.5, residual_multiplier=0.4, logits_scaling=1.5,
                     pad_token_id=0),
        faults={"scale of head_dim": setting(attention_multiplier=8**-0.5)}),
    "olmo": dict(
        about="olmo: norms without weights, q, k and v clipped to 1",
        config=gated("OlmoForCausalLM", "olmo", clip_qkv=1.0, rms_norm_eps=ABSENT),
        faults={"no clipping": setting(clip_qkv=None)}),
    "olmo2": dict(
        about="olmo2: norms after the branches only, norms on whole q and k; epsilon 0.02",
        config=gated("Olmo2ForCausalLM", "olmo2", rms_norm_eps=0.02, pad_token_id=0)),
    "cohere": dict(
        about="cohere: one norm without bias before parallel branches, interleaved pairs, logits "
              "times 0.75; tied; epsilon 0.02",
        config=cohere("CohereForCausalLM", "cohere", use_qk_norm=False)),
    "cohere_query_key_norms": dict(
        about="cohere: use_qk_norm, a weight for each head of q and k",
        config=cohere("CohereForCausalLM", "cohere", use_qk_norm=True, layer_norm_eps=1e-5)),
    "cohere2": dict(
        about="cohere2: four layers, of which three slide (12) and rotate and the last sees all "
              "without positions; tied",
        config=cohere("Cohere2ForCausalLM", "cohere2", num_hidden_layers=4, sliding_window=12,
                      intermediate_size=32, sliding_window_pattern=4),
        faults={"all slide": all_sliding}),
    "glm": dict(
        about="glm: interleaved pairs on the first half of 12 (no key says so), biases on q, k and "
              "v, fused gate and up",
        config=glm("GlmForCausalLM", "glm", partial_rotary_factor=ABSENT),
        faults={"full width": full_width}),
    "glm4": dict(
        about="glm4: glm with norms after the branches too; epsilon 0.02",
        config=glm("Glm4ForCausalLM", "glm4", rms_norm_eps=0.02)),
    "persimmon": dict(
        about="persimmon: norms for heads of q and k with biases, squared relu, biases, rotary on "
              "half of 12 (no key says so)",
        config=gated("PersimmonForCausalLM", "persimmon", **layer_norms(dict(
            hidden_size=48, vocab_size=80, num_key_value_heads=ABSENT,
            hidden_act="relu2", qk_layernorm=True,
            rope_theta=1000.0))),
        faults={"full width": full_width}),
    "starcoder2": dict(
        about="starcoder2: norms and linears with biases, tanh gelu without gate, a window of 16",
        config=gated("Starcoder2ForCausalLM", "starcoder2", rms_norm_eps=ABSENT,
                     norm_epsilon=0.02, hidden_act="gelu_pytorch_tanh", use_bias=True,
                     sliding_window=16, tie_word_embeddings=True)),
    "starcoder2_no_biases": dict(
        about="starcoder2: use_bias false, no window, its own head",
        config=gated("Starcoder2ForCausalLM", "starcoder2", rms_norm_eps=ABSENT,
                     norm_epsilon=1e-5, hidden_act="gelu_pytorch_tanh", use_bias=False,
                     sliding_window=None)),
    "mixtral": dict(
        about="mixtral: two of four experts for each token",
        config=gated("MixtralForCausalLM", "mixtral", num_local_experts=4, num_experts_per_tok=2,
                     intermediate_size=24, sliding_window=None, vocab_size=80,
                     router_aux_loss_coef=0.02, output_router_logits=False),
        faults={"one expert": setting(num_experts_per_tok=1)}),
    "mixtral_three_of_five": dict(
        about="mixtral: three of five experts, a window of 16, head_dim 12",
        config=gated("MixtralForCausalLM", "mixtral", num_local_experts=5, num_experts_per_tok=3,
                     intermediate_size=20, sliding_window=16, vocab_size=80, head_dim=12,
                     tie_word_embeddings=True),
        faults={"two experts": setting(num_experts_per_tok=2)}),
    "ministral3": dict(
        about="ministral3: q grows with its position (beta 0.4, steps of 16), YaRN by 4 from 16",
        config=ministral3({}),
        faults={"q as it is": setting_dial(llama_4_scaling_beta=0.0)}),
    "llama4": dict(
        about="llama4 text without experts: interleaved pairs, norms without weights on rotated q "
              "and k, three layers that see their chunk of 12 and rotate, the fourth sees all "
              "without positions, its q growing by 0.5 in steps of 8; epsilon 0.02",
        config=llama4(),
        faults={"no temperature": setting(attn_temperature_tuning=False),
                "chunks of 13": setting(attention_chunk_size=13),
                "all rotate": without_layer_types,
                "no norm on q and k": setting(use_qk_norm=False)}),
    "llama_linear": dict(
        about="llama: linear scaling by 4, spelled `type`",
        config=scaled({"type": "linear", "factor": 4.0})),
    "qwen2_linear": dict(
        about="qwen2: linear scaling by 2.5",
        config=scaled({"rope_type": "linear", "factor": 2.5}, "qwen2")),
    "llama_dynamic": dict(
        about="llama: dynamic scaling by 4 of a trained context of 32, which the prompt (and, in "
              "expected_short.json, only the continuation) leaves behind; see README.md",
        config=scaled({"type": "dynamic", "factor": 4.0}, max_position_embeddings=32),
        prompts={"": 48, "_short": 24}, greedy=greedy_at_full_length, context=64),
    "qwen2_dynamic": dict(
        about="qwen2: dynamic scaling by 2 of a trained context of 24; original_max_position_"
              "embeddings given, which dynamic scaling ignores",
        config=scaled({"rope_type": "dynamic", "factor": 2.0,
                       "original_max_position_embeddings": 12}, "qwen2",
                      max_position_embeddings=24),
        greedy=greedy_at_full_length, context=64),
    "llama_yarn": dict(
        about="llama: YaRN by 4, the original length left to max_position_embeddings (64)",
        config=scaled({"type": "yarn", "factor": 4.0}, max_position_embeddings=64)),
    "qwen2_yarn": dict(
        about="qwen2: YaRN by 4 with an original length of 32; max_position_embeddings says 256",
        config=scaled({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                      "qwen2", max_position_embeddings=256)),
    "qwen2_yarn_factor_is_not_the_ratio": dict(
        about="qwen2: YaRN by 4 where max_position_embeddings (64) is twice the original length",
        config=scaled({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                      "qwen2", max_position_embeddings=64),
        faults={"factor 2": setting_dial(factor=2.0)}),
    "llama_yarn_mscales": dict(
        about="llama: YaRN by 8 with mscale 1.5 and mscale_all_dim 0.5",
        config=scaled({"rope_type": "yarn", "factor": 8.0, "mscale": 1.5, "mscale_all_dim": 0.5,
                       "original_max_position_embeddings": 32}),
        faults={"no mscale": setting_dial(mscale=None),
                "equal mscales": setting_dial(mscale=0.5)}),
    "llama_yarn_attention_factor": dict(
        about="llama: YaRN by 8 with attention_factor 0.8 beside mscales that it overrides",
        config=scaled({"rope_type": "yarn", "factor": 8.0, "attention_factor": 0.8,
                       "mscale": 1.5, "mscale_all_dim": 0.5,
                       "original_max_position_embeddings": 32}),
        faults={"attention_factor left out": setting_dial(attention_factor=None)}),
    "llama_yarn_not_truncated": dict(
        about="llama: YaRN by 8 whose ramp is not rounded to whole planes",
        config=scaled({"rope_type": "yarn", "factor": 8.0, "truncate": False,
                       "original_max_position_embeddings": 32}, head_dim=32),
        faults={"truncated": setting_dial(truncate=True)}),
    "llama_yarn_betas": dict(
        about="llama: YaRN by 8 with beta_fast 2 and beta_slow 0.5",
        config=scaled({"rope_type": "yarn", "factor": 8.0, "beta_fast": 2.0, "beta_slow": 0.5,
                       "original_max_position_embeddings": 32}, head_dim=32),
        faults={"beta_fast 32": setting_dial(beta_fast=32.0),
                "beta_slow 1": setting_dial(beta_slow=1.0)}),
    "llama_yarn_spelling_5": dict(
        about="llama: YaRN by 4 from 32 in rope_parameters",
        config=scaled(ABSENT, rope_theta=ABSENT, rope_parameters={
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
            "original_max_position_embeddings": 32})),
    "llama_proportional": dict(
        about="llama: proportional scaling, half of the planes rotating at the whole width's "
              "frequencies, halved, and the others not at all",
        config=scaled(ABSENT, rope_theta=ABSENT, rope_parameters={
            "rope_type": "proportional", "rope_theta": 1000.0, "factor": 2.0,
            "partial_rotary_factor": 0.5})),
    "llama_ntk_aware": dict(
        about="llama: a base changed for good from 100 by 4^(16/14), as NTK-aware scaling does",
        config=scaled(None, rope_theta=100.0 * 4.0 ** (16 / 14))),
    "phi3_longrope": dict(
        about="phi3: LongRoPE with an original length of 32 at top level; the prompt is past the "
              "switch, in expected_short.json prompt and continuation stay before it, in "
              "expected_crossing.json the continuation crosses it",
        config=longrope(), prompts={"": 40, "_short": 15, "_crossing": 26}),
    "phi3_longrope_partial": dict(
        about="phi3: LongRoPE on 0.75 of 16 with attention_factor 1.3",
        config=longrope(hidden_size=64, intermediate_size=24, partial_rotary_factor=0.75,
                        vocab_size=64,
                        rope_scaling={
                            "rope_type": "longrope", "attention_factor": 1.3,
                            "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4],
                            "long_factor": [1.0, 1.4, 1.9, 2.7, 3.7, 6.0]}),
        faults={"attention_factor left out": setting_dial(attention_factor=None)}),
} | baichuan_cases() | scaled_cases()


# --------------------------------------------------------------------------------------------------


def make_folder(name):
    case = CASES[name]
    config, attention = case["config"], case.get("attention", "eager")

    def make(folder, rng):
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        ends = {k: config[k] for k in ("bos_token_id", "eos_token_id")}
        (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**case["reference"]) if "reference" in case
            else AutoConfig.from_pretrained(folder), dtype=torch.float32,
            attn_implementation=attention, experts_implementation="eager").eval()
        fill(model, rng)
        if "alibi_heads" in case:
            model.slopes = modeling_bloom._get_alibi_slopes(case["alibi_heads"], None)
        dtype = getattr(torch, config.get("torch_dtype") or config["dtype"])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(dtype).float())

        def save():
            state = {name: x.to(dtype) for name, x in checkpoint(model).items()}
            tidy(folder, case.get("rename", dict)(state))
            if "reference" in case:
                return
            tokens = list(range(3, 20))
            read = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation=attention,
                experts_implementation="eager").eval()
            assert np.array_equal(logits_of(read, tokens), logits_of(model, tokens))

        stack = contextlib.ExitStack()
        if case.get("exact_alibi"):
            source = sys.modules[type(model).__module__]
            stack.enter_context(mock.patch.object(
                source, "build_alibi_tensor", modeling_bloom.build_alibi_tensor))
        with stack:
            prompts = case.get("prompts", {"": PROMPT})
            return all(record(folder, model, case, rng, prompt, suffix, save)
                       for suffix, prompt in prompts.items())

    kept = HERE / name
    # Two spellings of one model share a seed.
    attempt(case.get("seed", name), make, kept if kept.exists() else HERE / "pending" / name, 200)


def make_named(cases, names, make):
    """Makes all of the cases, or those named, but for those of another version of transformers."""
    unknown = [name for name in names if name not in cases]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are: {', '.join(cases)}")
    for name in names or cases:
        wanted = cases[name].get("version", "5.24.0")
        if transformers.__version__ != wanted:
            print(f"{name}: left to transformers {wanted}")
        else:
            make(name)


if __name__ == "__main__":
    make_named(CASES, sys.argv[1:], make_folder)
