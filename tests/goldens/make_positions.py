"""Position tables as transformers forms them: scaled rotary frequencies in scaled_dials.json; slopes,
buckets and sinusoids in position_tables.json.

    make_positions.py              writes both beside itself
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

HERE = Path(__file__).resolve().parent

# Width, base, and the trained context: Llama 2, a short odd tail, Qwen2, gpt-oss.
SHAPES = [(128, 1e4, 4096), (20, 1e4, 64), (10, 5e5, 2048), (128, 1e6, 32768), (64, 150000.0, 4096)]


def divisors(count, last):
    """Rising from 1, as LongRoPE's are; short decimals."""
    return [round(1 + (last - 1) * (i / count) ** 2, 4) for i in range(count)]


def scalings(width, context):
    """What is said of scaling, and the lengths of sequences to ask for."""
    yield {"rope_type": "linear", "factor": 4.0}, [None]
    yield {"rope_type": "linear", "factor": 3.7}, [None]
    for factor in (2.0, 3.7):
        yield {"rope_type": "dynamic", "factor": factor}, [context - 1, context, context + 1, 3 * context + 7]
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": context}
    for more in ({}, {"factor": 32.0, "truncate": False}, {"beta_fast": 16.0, "beta_slow": 2.0},
                 {"attention_factor": 1.25}, {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
                 {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}, {"factor": 1.0},
                 {"factor": None, "original_max_position_embeddings": context // 2}):
        yield yarn | more, [None]
    longrope = {"rope_type": "longrope", "short_factor": divisors(width // 2, 2.5),
                "long_factor": divisors(width // 2, 60.0), "original_max_position_embeddings": context // 4}
    for more in ({}, {"factor": 32.0}, {"factor": 1.0}, {"attention_factor": 1.5}):
        yield longrope | more, [context // 4, context // 4 + 1]
    yield {"rope_type": "proportional", "partial_rotary_factor": 0.25}, [None]
    yield {"rope_type": "proportional", "partial_rotary_factor": 0.6, "factor": 8.0}, [None]


def make_scaled_dials():
    rows = []
    for width, base, context in SHAPES:
        exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        for scaling, lengths in scalings(width, context):
            for length in lengths:
                config = transformers.LlamaConfig(
                    hidden_size=2 * width, num_attention_heads=2, head_dim=width,
                    max_position_embeddings=context, rope_parameters={"rope_theta": base} | scaling)
                scaled = ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
                # As a forward pass has it: a tensor.
                frequencies, amplitude = scaled(
                    config, "cpu", seq_len=None if length is None else torch.tensor(length))
                power = torch.tensor(base, dtype=torch.float32) ** torch.from_numpy(exponents)
                rounded = (np.float64(np.float32(base)) ** exponents.astype(np.float64)).astype(np.float32)
                rows.append({
                    "width": width,
                    "base": base,
                    "context": context,
                    "scaling": scaling,
                    "length": length,
                    "attention_factor": amplitude,
                    "frequencies": [float(x) for x in frequencies.numpy()],
                    "power_rounded_otherwise": np.nonzero(rounded != power.numpy())[0].tolist(),
                })
    write("scaled_dials.json", rows)


def make_tables():
    tables = {"slopes": [], "buckets": [], "sinusoids": []}
    for heads in (1, 2, 6, 8, 10, 12, 14, 16, 32, 40, 71, 112):
        bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        tables["slopes"].append({"kind": "bloom", "heads": heads, "slopes": bloom.tolist()})
        for bias_max in (8, 16, 5):
            mpt = build_mpt_alibi_tensor(heads, 2, alibi_bias_max=bias_max)[:, 0, 0].neg()
            tables["slopes"].append({"kind": "mpt", "heads": heads, "bias_max": bias_max, "slopes": mpt.tolist()})
    distances = torch.arange(-300, 301)
    for buckets, reach in ((32, 128), (8, 20), (16, 40), (64, 256)):
        for both in (False, True):
            bucket = T5Attention._relative_position_bucket(distances, both, buckets, reach)
            tables["buckets"].append({"buckets": buckets, "max_distance": reach, "bidirectional": both,
                                      "first_distance": -300, "bucket": bucket.tolist()})
    for width in (6, 9, 16):
        if width % 2 == 0:
            interleaved = torch.empty(40, width)
            create_sinusoidal_embeddings(40, width, interleaved)
            add_sinusoid(tables, "interleaved", 0, None, interleaved)
        add_sinusoid(tables, "halves", 0, None, MarianSinusoidalPositionalEmbedding(40, width).create_weight())
        spread = M2M100SinusoidalPositionalEmbedding.get_embedding(40, width, padding_idx=1)
        add_sinusoid(tables, "spread", 2, 1, spread)
    write("position_tables.json", [{"kind": kind, "tables": rows} for kind, rows in tables.items()])


def add_sinusoid(tables, layout, offset, zero_row, table):
    tables["sinusoids"].append({"layout": layout, "row_offset": offset, "zero_row": zero_row,
                                "rows": table.shape[0], "width": table.shape[1],
                                "table": [float(x) for x in table.detach().reshape(-1)]})


def write(name, rows):
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    (HERE / name).write_text(f"[\n{body}\n]\n")


if __name__ == "__main__":
    make_scaled_dials()
    make_tables()
