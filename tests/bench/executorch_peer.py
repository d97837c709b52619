"""ExecuTorch in the race: exports a Llama of a Hugging Face folder for XNNPACK, and times it.

    executorch_peer.py export FOLDER OUT.pte --context TOKENS --prefill TOKENS
    executorch_peer.py time MODEL.pte --threads N --prefill TOKENS --decode TOKENS --depths 0,4096

The export is what ExecuTorch advises for a CPU: linears as 8da4w (int4 weights, symmetric, a scale
to 32; inputs rounded to int8 as they come; the head too), an int8 embedding, its own operator for
attention with a cache in float. The cache starts empty, so a time at a depth writes that many
tokens first. Needs executorch with torch, torchao and safetensors.
"""

import argparse
import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch

NAMES = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
         "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
         "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
         "mlp.up_proj": "feed_forward.w3"}


def interleaved(weight, heads):
    """Rows of q or k reordered, so that the pairs of half pairing become neighbours."""
    rows, inputs = weight.shape
    return weight.view(heads, 2, rows // heads // 2, inputs).transpose(1, 2).reshape(rows, inputs)


def meta_weights(folder, config):
    """The folder's tensors under the names and in the pairing of Meta's Llama."""
    from safetensors.torch import load_file
    source = {}
    for file in sorted(folder.glob("*.safetensors")):
        source |= load_file(file)
    heads = {"attention.wq": config["num_attention_heads"], "attention.wk": config["num_key_value_heads"]}
    found = {"tok_embeddings.weight": source["model.embed_tokens.weight"],
             "output.weight": source.get("lm_head.weight", source["model.embed_tokens.weight"]),
             "norm.weight": source["model.norm.weight"]}
    for layer in range(config["num_hidden_layers"]):
        for theirs, name in NAMES.items():
            weight = source[f"model.layers.{layer}.{theirs}.weight"]
            found[f"layers.{layer}.{name}.weight"] = interleaved(weight, heads[name]) if name in heads else weight
    return found


def meta_parameters(config):
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", "default")
    if config["model_type"] != "llama" or kind not in ("default", "llama3"):
        sys.exit(f"no export of model_type {config['model_type']} with rotary scaling {kind}: "
                 "only Llama's shape, plain or scaled as Llama 3")
    return {"dim": config["hidden_size"], "n_layers": config["num_hidden_layers"],
            "n_heads": config["num_attention_heads"], "n_kv_heads": config["num_key_value_heads"],
            "hidden_dim": config["intermediate_size"], "vocab_size": config["vocab_size"],
            "norm_eps": config["rms_norm_eps"], "rope_theta": config["rope_theta"],
            "use_scaled_rope": kind == "llama3"}


def export(options):
    from executorch.examples.models.llama.export_llama_lib import export_llama
    from executorch.extension.llm.export.config import llm_config
    config = json.loads((options.folder / "config.json").read_text())
    parameters = meta_parameters(config)
    with tempfile.TemporaryDirectory() as name:
        checkpoint, params = Path(name) / "weights.pth", Path(name) / "params.json"
        torch.save(meta_weights(options.folder, config), checkpoint)
        params.write_text(json.dumps(parameters))
        wanted = llm_config.LlmConfig()
        wanted.base.model_class = llm_config.ModelType.llama3_2  # scales as Llama 3.2 where it scales
        wanted.base.checkpoint, wanted.base.params = str(checkpoint), str(params)
        wanted.model.use_kv_cache = wanted.model.use_sdpa_with_kv_cache = True
        wanted.export.max_seq_length = options.prefill + 1  # a bound that a call stays below
        wanted.export.max_context_length = options.context
        wanted.export.output_dir, wanted.export.output_name = name, "model.pte"
        wanted.quantization.qmode, wanted.quantization.group_size = "8da4w", 32
        wanted.quantization.embedding_quantize, wanted.quantization.use_hqq = "8,0", False
        wanted.backend.xnnpack.enabled = wanted.backend.xnnpack.extended_ops = True
        Path(export_llama(wanted)).replace(options.output)


def clock(options):
    from executorch.extension.llm.custom_ops import custom_ops  # registers the attention
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
    from executorch.kernels import quantized  # registers the embedding
    from executorch.runtime import Runtime
    _unsafe_reset_threadpool(options.threads)
    method = Runtime.get().load_program(options.model).load_method("forward")

    def feed(tokens, position):
        ids = torch.tensor([[100 + (position + i) % 5000 for i in range(tokens)]])
        method.execute([ids, torch.tensor([position])])

    def seconds(tokens, position, times=1):
        start = time.monotonic()
        for i in range(times):
            feed(tokens, position + i)
        return time.monotonic() - start

    feed(options.prefill, 0)
    feed(1, options.prefill)
    filled, figures = 0, []
    for depth in sorted(options.depths):
        while filled < depth:
            step = min(options.prefill, depth - filled)
            feed(step, filled)
            filled += step
        prefill = options.prefill / seconds(options.prefill, depth)
        decode = options.decode / seconds(1, depth, options.decode)
        figures += [["prefill", depth, prefill], ["decode", depth, decode]]
    print(json.dumps({"version": f"ExecuTorch {version('executorch')}", "figures": figures}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("export")
    verb.set_defaults(act=export)
    verb.add_argument("folder", type=Path)
    verb.add_argument("output", type=Path)
    verb.add_argument("--context", type=int, required=True)
    verb.add_argument("--prefill", type=int, required=True)
    verb = verbs.add_parser("time")
    verb.set_defaults(act=clock)
    verb.add_argument("model")
    verb.add_argument("--threads", type=int, required=True)
    verb.add_argument("--prefill", type=int, required=True)
    verb.add_argument("--decode", type=int, required=True)
    verb.add_argument("--depths", type=lambda text: [int(part) for part in text.split(",")], required=True)
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
