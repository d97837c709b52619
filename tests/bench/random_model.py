#!/usr/bin/env python3
"""Writes a checkpoint of a stated shape with random weights, for timing what has no free sample.

    random_model.py llama-1b|mpt-300m FOLDER

The folder gets the model twice, with the same weights in float16: as Hugging Face lays it out
(config.json, model.safetensors, tokenizer.json) and as model.gguf. Linears are normal with a
deviation of 0.02, norms are ones; no output means anything. The tokenizer is of single bytes, and
its vocabulary is filled up with names of numbers. Needs numpy, safetensors and gguf.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy
from safetensors.numpy import save_file

SEED, DEVIATION = 6, 0.02

# Llama 3.2 1B's, with its scaling of long wavelengths, and 300M parameters of MPT's kind (ALiBi).
SHAPES = {
    "llama-1b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
                 "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu",
                 "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                 "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
                 "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
                 "bos_token_id": 128000, "eos_token_id": 128001, "torch_dtype": "float16"},
    "mpt-300m": {"architectures": ["MPTForCausalLM"], "model_type": "mpt", "vocab_size": 50432, "d_model": 1024,
                 "n_layers": 20, "n_heads": 16, "expansion_ratio": 4, "max_seq_len": 2048, "no_bias": True,
                 "layer_norm_epsilon": 1e-5, "norm_type": "low_precision_layernorm", "learned_pos_emb": False,
                 "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention",
                                 "clip_qkv": None, "softmax_scale": None, "qk_ln": False, "prefix_lm": False,
                                 "attn_uses_sequence_id": False},
                 "tie_word_embeddings": True, "bos_token_id": 50430, "eos_token_id": 50431, "torch_dtype": "float16"},
}


def byte_letters():
    """The letter that byte-level BPE writes for each byte: itself if it is printable."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(hidden))]


def vocabulary(size):
    """Tokens, how many of them are text, and the one merge that readers insist on."""
    text = [*byte_letters(), "Ġt"]
    return text + [f"<|{i}|>" for i in range(len(text), size)], len(text), "Ġ t"


class Checkpoint:
    """Both files of one model: every tensor goes to both under its two names."""

    def __init__(self, folder, architecture, config):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.config, self.tensors = folder, config, {}
        self.random = numpy.random.default_rng(SEED)
        self.gguf = gguf.GGUFWriter(folder / "model.gguf", architecture)
        self.gguf.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    def linear(self, name, gguf_name, rows, inputs, interleaved_heads=0):
        weight = (self.random.standard_normal((rows, inputs), numpy.float32) * DEVIATION).astype(numpy.float16)
        self.tensors[f"{name}.weight"] = weight
        if interleaved_heads:  # llama.cpp pairs neighbours where Hugging Face pairs halves
            weight = weight.reshape(interleaved_heads, 2, -1, inputs).swapaxes(1, 2).reshape(rows, inputs)
        self.gguf.add_tensor(f"{gguf_name}.weight", numpy.ascontiguousarray(weight))

    def norm(self, name, gguf_name, width):
        self.tensors[f"{name}.weight"] = numpy.ones(width, numpy.float16)
        self.gguf.add_tensor(f"{gguf_name}.weight", numpy.ones(width, numpy.float32))

    def write(self):
        config, writer = self.config, self.gguf
        tokens, text, merge = vocabulary(config["vocab_size"])
        bos, eos = config["bos_token_id"], config["eos_token_id"]
        (self.folder / "config.json").write_text(json.dumps(config, indent=2))
        added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": True} for i in range(text, len(tokens))]
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        (self.folder / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens[:text])},
                      "merges": [merge]}}))
        (self.folder / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[bos], "eos_token": tokens[eos],
            "unk_token": tokens[eos]}))
        save_file(self.tensors, self.folder / "model.safetensors", {"format": "pt"})
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.NORMAL] * text + [gguf.TokenType.CONTROL] * (len(tokens) - text))
        writer.add_token_merges([merge])
        writer.add_bos_token_id(bos)
        writer.add_eos_token_id(eos)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def scaled_factors(config):
    """What Llama 3.1 and later divide each pair's frequency by: section 3.2 of arXiv:2407.21783."""
    scaling, width = config["rope_scaling"], config["head_dim"]
    wavelength = 2 * numpy.pi * config["rope_theta"] ** (numpy.arange(0, width, 2) / width)
    turns = scaling["original_max_position_embeddings"] / wavelength
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = numpy.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / scaling["factor"])).astype(numpy.float32)


def llama(folder, config):
    checkpoint = Checkpoint(folder, "llama", config)
    width, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = checkpoint.gguf
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tensor("rope_freqs.weight", scaled_factors(config))
    checkpoint.linear("model.embed_tokens", "token_embd", config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
        checkpoint.norm(f"{ours}.input_layernorm", f"{theirs}.attn_norm", width)
        checkpoint.linear(f"{ours}.self_attn.q_proj", f"{theirs}.attn_q", heads * head_dim, width, heads)
        checkpoint.linear(f"{ours}.self_attn.k_proj", f"{theirs}.attn_k", kv_heads * head_dim, width, kv_heads)
        checkpoint.linear(f"{ours}.self_attn.v_proj", f"{theirs}.attn_v", kv_heads * head_dim, width)
        checkpoint.linear(f"{ours}.self_attn.o_proj", f"{theirs}.attn_output", width, heads * head_dim)
        checkpoint.norm(f"{ours}.post_attention_layernorm", f"{theirs}.ffn_norm", width)
        checkpoint.linear(f"{ours}.mlp.gate_proj", f"{theirs}.ffn_gate", inner, width)
        checkpoint.linear(f"{ours}.mlp.up_proj", f"{theirs}.ffn_up", inner, width)
        checkpoint.linear(f"{ours}.mlp.down_proj", f"{theirs}.ffn_down", width, inner)
    checkpoint.norm("model.norm", "output_norm", width)
    checkpoint.write()


def mpt(folder, config):
    checkpoint = Checkpoint(folder, "mpt", config)
    width = config["d_model"]
    inner = width * config["expansion_ratio"]
    writer = checkpoint.gguf
    writer.add_block_count(config["n_layers"])
    writer.add_context_length(config["max_seq_len"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(config["n_heads"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_max_alibi_bias(float(config["attn_config"]["alibi_bias_max"]))
    checkpoint.linear("transformer.wte", "token_embd", config["vocab_size"], width)
    for layer in range(config["n_layers"]):
        ours, theirs = f"transformer.blocks.{layer}", f"blk.{layer}"
        checkpoint.norm(f"{ours}.norm_1", f"{theirs}.attn_norm", width)
        checkpoint.linear(f"{ours}.attn.Wqkv", f"{theirs}.attn_qkv", 3 * width, width)
        checkpoint.linear(f"{ours}.attn.out_proj", f"{theirs}.attn_output", width, width)
        checkpoint.norm(f"{ours}.norm_2", f"{theirs}.ffn_norm", width)
        checkpoint.linear(f"{ours}.ffn.up_proj", f"{theirs}.ffn_up", inner, width)
        checkpoint.linear(f"{ours}.ffn.down_proj", f"{theirs}.ffn_down", width, inner)
    checkpoint.norm("transformer.norm_f", "output_norm", width)
    checkpoint.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    config = SHAPES[options.shape]
    {"llama": llama, "mpt": mpt}[config["model_type"]](options.folder, config)


if __name__ == "__main__":
    main()
