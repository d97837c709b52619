#!/usr/bin/env python3
"""Makes the GGUF goldens of the families and scalings beyond those of make.py.

    families_gguf.py [NAME...]     all of them, or those named

Models, conditions and places are those of families.py. Matrices are stored in half precision, and
the reference is the torch model of the very values that the file holds. Tensors are named by the
`gguf` package and rearranged as the format wants them:

    gpt2                      matrices transposed; `output` repeats the embedding
    gptneox, bloom            rows of q, k and v, together for each head, become [q | k | v]
    falcon                    likewise, from groups of query heads with one k and one v
    llama, mistral3, baichuan,
    granite, olmo, smollm3    rows of q and k from half pairing to interleaved
    gemma, gemma2, gemma3     norms hold 1 + w
    llama with experts        experts stacked
    stablelm                  norms of q's and k's heads stacked
"""

import math
import re
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Block
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.bloom import modeling_bloom

import families as hf
from make import HERE, attempt, permute
from families import ABSENT, setting

YARN = gguf.RopeScalingType.YARN


def rounded(model):
    """Leaves in the model only what the file can hold."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "norm" not in name:
                parameter.copy_(parameter.half().float())
            elif model.config.model_type.startswith("gemma") and "norm" in name:
                parameter.copy_((1 + parameter) - 1)


def regrouped(x, groups, queries, head_dim):
    """Rows [groups, queries + k + v, head_dim, ...] as [q | k | v]."""
    rows = x.reshape(groups, queries + 2, head_dim, *x.shape[1:])
    parts = rows[:, :queries], rows[:, queries], rows[:, queries + 1]
    return np.concatenate([part.reshape(-1, *x.shape[1:]) for part in parts])


def rearranged(arch, config, state):
    """Names of the checkpoint, and the tensors in the format's arrangement."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    stacks = {}
    for name, x in state.items():
        x = x.numpy()
        if arch == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight", name):
            x = x.T
        elif "query_key_value" in name:
            groups, queries = heads, 1
            if arch == "falcon":
                groups = config.num_kv_heads if config.new_decoder_architecture else \
                    1 if config.multi_query else heads
                queries = heads // groups
            x = regrouped(x, groups, queries, head_dim)
        elif arch in ("llama", "mistral3", "baichuan", "granite", "olmo", "smollm3") and \
                (part := re.search(r"(q|k)_proj", name)):
            x = permute(x, heads if part[1] == "q" else kv_heads)
        elif arch.startswith("gemma") and "norm" in name:
            x = x + np.float32(1)
        part = re.search(r"(experts|layernorm\.norms)\.(\d+)\.", name)
        if part:  # in the order of their numbers
            whole = name.replace("norms." + part[2] + ".", "").replace(
                "experts." + part[2], "experts")
            stacks.setdefault(whole, {})[int(part[2])] = x
        else:
            yield name, x
    for name, parts in stacks.items():
        yield name, np.stack([parts[i] for i in range(len(parts))])


def write(path, arch, model, case):
    config, state = model.config, hf.checkpoint(model)
    layers = config.num_hidden_layers
    names = gguf.get_tensor_name_map(
        next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), layers)
    tensors = {}
    for name, x in rearranged(arch, config, state):
        found = names.get_name(name, (".weight", ".bias")) or names.get_name(
            name.removeprefix("transformer."), (".weight", ".bias"))
        assert found and found not in tensors, name
        tensors[found] = x
    if arch == "gpt2":
        tensors["output.weight"] = tensors["token_embd.weight"]
    tensors |= case.get("tensors", {})

    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.parent.name)
    writer.add_context_length(next(
        (getattr(config, key) for key in ("max_position_embeddings", "max_seq_len")
         if hasattr(config, key)), 256))
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(layers)
    inner = "blk.0.ffn_down_exps.weight" if "blk.0.ffn_down_exps.weight" in tensors else \
        "blk.0.ffn_down.weight"
    writer.add_feed_forward_length(tensors[inner].shape[-1])
    writer.add_head_count(config.num_attention_heads)
    kv_heads = getattr(config, "num_key_value_heads", None)
    if arch == "falcon":
        kv_heads = config.num_kv_heads if config.new_decoder_architecture else 1
    if kv_heads:
        writer.add_head_count_kv(kv_heads)
    if (head_dim := getattr(config, "head_dim", None)) and arch not in ("falcon",):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        epsilon = [getattr(config, key) for key in hf.EPSILONS if hasattr(config, key)]
        writer.add_layer_norm_eps(epsilon[0] if epsilon else 1e-5)  # olmo's is fixed
    rotary = [x for x in model.modules() if type(x).__name__.endswith("RotaryEmbedding")]
    if rotary:
        dials = hf.rotary_parameters(config)
        writer.add_rope_freq_base(config.rope_parameters.get("full_attention", dials[0])
                                  ["rope_theta"])
        if arch != "gemma3":
            writer.add_rope_dimension_count(2 * rotary[0].inv_freq.numel())
    for method, value in case.get("keys", {}).items():
        getattr(writer, method)(value)
    for name, x in tensors.items():
        half = x.ndim > 1 and not re.search(r"norm|position_embd|ffn_gate_inp", name)
        block = Block.F16 if half else Block.F32
        stored = np.ascontiguousarray(x, np.float16 if half else np.float32)
        assert np.array_equal(stored.astype(np.float32), x), name
        writer.add_tensor(name, stored, raw_dtype=block)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Baichuan's sizes are told apart by their layers alone.
DEEP = dict(hidden_size=12, intermediate_size=16, num_attention_heads=3, num_key_value_heads=ABSENT,
            vocab_size=64)
LONG, SHORT = [1.0, 1.9, 3.7, 6.0], [1.0, 1.1, 1.3, 1.5]

CASES = {
    "gguf_gpt2": dict(
        arch="gpt2", about="GGUF, gpt2: learned positions; output repeats the embedding",
        config=hf.gpt2()),
    "gguf_gptneox_parallel": dict(
        arch="gptneox", about="GGUF, gptneox: parallel residual, 4 of 16 rotate, base 100",
        config=hf.gpt_neox(), keys=dict(add_parallel_residual=True)),
    "gguf_gptneox_sequential": dict(
        arch="gptneox", about="GGUF, gptneox: sequential residual, 6 of 16 rotate",
        config=hf.gpt_neox(use_parallel_residual=False, rotary_pct=0.375),
        keys=dict(add_parallel_residual=False)),
    "gguf_bloom": dict(
        arch="bloom", about="GGUF, bloom: six heads of ALiBi, which no key mentions; tied",
        config=hf.bloom()),
    "gguf_mpt": dict(
        arch="mpt", about="GGUF, mpt: ten heads of ALiBi by max_alibi_bias, clamp_kqv 1.5; tied",
        config=hf.mpt({"clip_qkv": 1.5}),
        keys=dict(add_max_alibi_bias=8.0, add_clamp_kqv=1.5),
        faults={"no clipping": lambda c: setattr(c.attn_config, "clip_qkv", None)}),
    "gguf_falcon_multi_query": dict(
        arch="falcon", about="GGUF, falcon: one key/value head, one norm; tied",
        config=hf.falcon()),
    "gguf_falcon_grouped": dict(
        arch="falcon", about="GGUF, falcon: two key/value heads, attn_norm_2 before attention; "
                             "tied",
        config=hf.falcon(new_decoder_architecture=True, num_kv_heads=2, multi_query=False)),
    "gguf_gemma": dict(
        arch="gemma", about="GGUF, gemma: norms hold 1 + w; epsilon 0.02",
        config=hf.gemma("GemmaForCausalLM", "gemma", rms_norm_eps=0.02)),
    "gguf_gemma2": dict(
        arch="gemma2", about="GGUF, gemma2: soft caps, a window of 12 on the first and third of "
                             "four layers; scores scaled by the root of head_dim",
        config=hf.gemma2(query_pre_attn_scalar=16, num_hidden_layers=4, intermediate_size=32),
        keys=dict(add_attn_logit_softcapping=4.0, add_final_logit_softcapping=6.0,
                  add_sliding_window=12),
        faults={"no cap on scores": setting(attn_logit_softcapping=None),
                "no cap on logits": setting(final_logit_softcapping=None),
                "both slide": hf.all_sliding}),
    "gguf_gemma3": dict(
        arch="gemma3", about="GGUF, gemma3: the sixth of seven layers sees all and has base 1000 "
                             "scaled linearly by 4; the others slide with base 10000, which no key "
                             "mentions; scores scaled by the root of head_dim",
        config=hf.gemma3(num_hidden_layers=7, intermediate_size=24, sliding_window_pattern=6,
                         vocab_size=80, hidden_size=24, head_dim=8, query_pre_attn_scalar=8,
                         rope_local_base_freq=10000.0),
        keys=dict(add_sliding_window=12, add_rope_scaling_type=gguf.RopeScalingType.LINEAR,
                  add_rope_scaling_factor=4.0),
        faults={"one base": hf.one_base, "all slide": hf.all_sliding}),
    "gguf_gemma3_local_base": dict(
        arch="gemma3", about="GGUF, gemma3: rope.freq_base_swa 100 for the sliding layers",
        config=hf.gemma3(num_hidden_layers=6, intermediate_size=24, sliding_window_pattern=6,
                         vocab_size=80, hidden_size=24, head_dim=8, query_pre_attn_scalar=8,
                         rope_scaling=None),
        keys=dict(add_sliding_window=12, add_rope_freq_base_swa=100.0),
        faults={"one base": hf.one_base, "all slide": hf.all_sliding}),
    "gguf_phi2": dict(
        arch="phi2", about="GGUF, phi2: parallel residual, biases, 4 of 10 rotate; separate q, k "
                           "and v",
        config=hf.phi(), faults={"full width": hf.full_width}),
    "gguf_phi3": dict(
        arch="phi3", about="GGUF, phi3: fused q, k, v and fused gate, up; a window of 16",
        config=hf.phi3(sliding_window=16, rope_scaling=None, original_max_position_embeddings=256),
        keys=dict(add_sliding_window=16, add_rope_scaling_orig_ctx_len=256)),
    "gguf_phi3_longrope": dict(
        arch="phi3", about="GGUF, phi3: LongRoPE by rope_factors_long and _short and attn_factor; "
                           "the prompt is past the switch at 32, in expected_short.json all stays "
                           "before it; chosen by the sequence's length, as the reference does",
        config=hf.longrope(tie_word_embeddings=False), prompts={"": 40, "_short": 15},
        keys=dict(add_rope_scaling_orig_ctx_len=32,
                  add_rope_scaling_attn_factors=math.sqrt(1 + math.log(4) / math.log(32))),
        tensors={"rope_factors_long.weight": np.array(LONG, np.float32),
                 "rope_factors_short.weight": np.array(SHORT, np.float32)}),
    "gguf_stablelm": dict(
        arch="stablelm", about="GGUF, stablelm: biases on q, k and v, 4 of 16 rotate, sequential",
        config=hf.stablelm(use_qkv_bias=True), keys=dict(add_parallel_residual=False),
        faults={"full width": hf.full_width}),
    "gguf_stablelm_parallel_norms": dict(
        arch="stablelm", about="GGUF, stablelm: parallel residual without a second norm, stacked "
                               "norms of q's and k's heads",
        config=hf.stablelm(use_parallel_residual=True, qk_layernorm=True, num_key_value_heads=2,
                           partial_rotary_factor=0.5),
        keys=dict(add_parallel_residual=True), faults={"full width": hf.full_width}),
    "gguf_starcoder2": dict(
        arch="starcoder2", about="GGUF, starcoder2: biases everywhere; tied",
        config=hf.gated("Starcoder2ForCausalLM", "starcoder2", rms_norm_eps=ABSENT,
                        norm_epsilon=0.02, hidden_act="gelu_pytorch_tanh", use_bias=True,
                        sliding_window=None, tie_word_embeddings=True)),
    "gguf_command_r": dict(
        arch="command-r", about="GGUF, command-r: parallel, interleaved pairs, logits times 0.75; "
                                "tied",
        config=hf.cohere("CohereForCausalLM", "cohere", use_qk_norm=False),
        keys=dict(add_logit_scale=0.75, add_rope_scaling_type=gguf.RopeScalingType.NONE)),
    "gguf_command_r_norms": dict(
        arch="command-r", about="GGUF, command-r: a norm's weight for each head of q and k",
        config=hf.cohere("CohereForCausalLM", "cohere", use_qk_norm=True, layer_norm_eps=1e-5),
        keys=dict(add_logit_scale=0.75, add_rope_scaling_type=gguf.RopeScalingType.NONE)),
    "gguf_cohere2": dict(
        arch="cohere2", about="GGUF, cohere2: of four layers three slide (12) and rotate, the last "
                              "sees all without positions; no key says which",
        config=hf.cohere("Cohere2ForCausalLM", "cohere2", num_hidden_layers=4, sliding_window=12,
                         intermediate_size=32, sliding_window_pattern=4),
        keys=dict(add_logit_scale=0.75, add_sliding_window=12,
                  add_rope_scaling_type=gguf.RopeScalingType.NONE),
        faults={"all slide": hf.all_sliding}),
    "gguf_olmo": dict(
        arch="olmo", about="GGUF, olmo: no norm has weights, clamp_kqv 1, rows of q and k permuted",
        config=hf.gated("OlmoForCausalLM", "olmo", clip_qkv=1.0, rms_norm_eps=ABSENT),
        keys=dict(add_clamp_kqv=1.0), faults={"no clipping": setting(clip_qkv=None)}),
    "gguf_olmo2": dict(
        arch="olmo2", about="GGUF, olmo2: norms after the branches, norms on whole q and k",
        config=hf.gated("Olmo2ForCausalLM", "olmo2", rms_norm_eps=0.02, pad_token_id=0)),
    "gguf_granite": dict(
        arch="granite", about="GGUF, granite: embedding, attention and residual scales; "
                              "logit_scale 1.5 divides; rows of q and k permuted",
        config=hf.gated("GraniteForCausalLM", "granite", embedding_multiplier=3.0,
                        attention_multiplier=0.5, residual_multiplier=0.4, logits_scaling=1.5,
                        pad_token_id=0),
        keys=dict(add_embedding_scale=3.0, add_attention_scale=0.5, add_residual_scale=0.4,
                  add_logit_scale=1.5),
        faults={"scale of head_dim": setting(attention_multiplier=8**-0.5)}),
    "gguf_smollm3": dict(
        arch="smollm3", about="GGUF, smollm3: the fourth of four layers has no positions, which no "
                              "key mentions; rows of q and k permuted; tied",
        config=hf.gated("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=4, rope_theta=5000.0,
                        intermediate_size=32, tie_word_embeddings=True, pad_token_id=0),
        faults={"all rotate": hf.without_layer_types}),
    "gguf_chatglm": dict(
        arch="chatglm", about="GGUF, chatglm: 6 of 12 rotate, interleaved; biases on q, k and v, "
                              "fused gate and up",
        config=hf.glm("GlmForCausalLM", "glm", rms_norm_eps=0.02)),
    "gguf_glm4": dict(
        arch="glm4", about="GGUF, glm4: 6 of 12 rotate, interleaved; biases on q, k and v, fused "
                           "gate and up, norms after the branches",
        config=hf.glm("Glm4ForCausalLM", "glm4", rms_norm_eps=0.02)),
    "gguf_mixtral": dict(
        arch="llama", about="GGUF, llama with experts: two of four, stacked; rows of q and k "
                            "permuted",
        config=hf.gated("MixtralForCausalLM", "mixtral", num_local_experts=4,
                        num_experts_per_tok=2, intermediate_size=24, sliding_window=None,
                        vocab_size=80),
        keys=dict(add_expert_count=4, add_expert_used_count=2),
        faults={"one expert": setting(num_experts_per_tok=1)}),
    "gguf_baichuan_7b": dict(
        arch="baichuan", about="GGUF, baichuan of 32 layers: rotary; rows of q and k permuted; the "
                               "reference is transformers' llama",
        config=hf.gated("LlamaForCausalLM", "llama", **DEEP, num_hidden_layers=32)),
    "gguf_baichuan_13b": dict(
        arch="baichuan", about="GGUF, baichuan of 40 layers: three heads of ALiBi, which no key "
                               "mentions; rows of q and k permuted; the reference is "
                               "transformers' llama",
        config=hf.gated("LlamaForCausalLM", "llama", **DEEP, num_hidden_layers=40),
        alibi_heads=3),
    "gguf_mistral3": dict(
        arch="mistral3", about="GGUF, mistral3: q grows with its position (temperature_scale 0.4, "
                               "steps of 16), YaRN by 4 from 16 with yarn_log_multiplier 1; rows "
                               "of q and k permuted",
        config=hf.ministral3({}),
        keys=dict(add_rope_scaling_type=YARN, add_rope_scaling_factor=4.0,
                  add_rope_scaling_orig_ctx_len=16, add_rope_scaling_yarn_log_mul=1.0,
                  add_rope_scaling_yarn_beta_fast=32.0, add_rope_scaling_yarn_beta_slow=1.0,
                  add_attn_temperature_scale=0.4),
        faults={"q as it is": hf.setting_dial(llama_4_scaling_beta=0.0),
                "yarn's own factor": hf.setting_dial(mscale=None, mscale_all_dim=None)}),
    "gguf_llama_linear": dict(
        arch="llama", about="GGUF, llama: linear scaling by 4",
        config=hf.scaled({"type": "linear", "factor": 4.0}),
        keys=dict(add_rope_scaling_type=gguf.RopeScalingType.LINEAR, add_rope_scaling_factor=4.0)),
    "gguf_qwen2_yarn": dict(
        arch="qwen2", about="GGUF, qwen2: YaRN by 4 from 32",
        config=hf.scaled({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                         "qwen2"),
        keys=dict(add_rope_scaling_type=YARN, add_rope_scaling_factor=4.0,
                  add_rope_scaling_orig_ctx_len=32)),
    "gguf_llama_yarn_attn_factor": dict(
        arch="llama", about="GGUF, llama: YaRN by 4 from 32 with attn_factor 0.7, which multiplies "
                            "1 + ln(4)/10",
        config=hf.scaled({"rope_type": "yarn", "factor": 4.0, "attention_factor":
                          0.7 * (1 + 0.1 * math.log(4)), "original_max_position_embeddings": 32}),
        keys=dict(add_rope_scaling_type=YARN, add_rope_scaling_factor=4.0,
                  add_rope_scaling_orig_ctx_len=32, add_rope_scaling_attn_factors=0.7),
        faults={"attn_factor is all": hf.setting_dial(attention_factor=0.7),
                "attn_factor left out": hf.setting_dial(attention_factor=None)}),
}


def make_gguf(name):
    case = CASES[name]

    def make(folder, rng):
        config = dict(case["config"])
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config.pop("model_type"), **config), dtype=torch.float32,
            attn_implementation="eager", experts_implementation="eager").eval()
        hf.fill(model, rng)
        if "alibi_heads" in case:
            model.slopes = modeling_bloom._get_alibi_slopes(case["alibi_heads"], None)
        rounded(model)
        path = folder / "model.gguf"

        def save():
            write(path, case["arch"], model, case)

        return all(hf.record(folder, model, case, rng, prompt, suffix, save, path.name)
                   for suffix, prompt in case.get("prompts", {"": hf.PROMPT}).items())

    kept = HERE / name
    attempt(name, make, kept if kept.exists() else HERE / "pending" / name, 200)


if __name__ == "__main__":
    hf.make_named(CASES, sys.argv[1:], make_gguf)
