#!/usr/bin/env python3
"""Makes the goldens of encoder-decoders: both stacks, greedy search and beams.

    seq2seq.py [NAME...]           all of them, or those named

The reference is transformers 5.24.0, eager attention, float32, under the conditions of make.py,
except that no library has a class of `transformer_*`: the model is PlainTransformer below, written
from arXiv:1706.03762 and equations 3 to 5 of arXiv:1803.02155, whose tensors have the names that
CTranslate2 gives them, with dots; what generates from it is transformers' search.

README.md says what `expected.json` holds. Folders go where those of families.py go.

Sources were drawn until what is generated from them stayed the same four times with noise of five
tolerances in every logit, and differed from what other settings give.
"""

import copy
import json
import math
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import (AutoConfig, GenerationConfig, GenerationMixin, LogitsProcessor,
                          LogitsProcessorList, PreTrainedConfig, PreTrainedModel)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

import decoders
from decoders import (bucket_faults, each_table, scale_fault, setting_in_modules, sinusoid_faults,
                      sinusoids, table_faults, with_table, without)
from encoders import home, in_double, largest, t5_keys, with_small_epsilons, write_gguf
from families import ABSENT, checkpoint, config_of, make_named
from make import TOLERANCE, attempt, one_line_lists, tidy

FOLDER_LIMIT = 150_000  # bytes


# --------------------------------------------------------------------------------------------------
# Reference models


class Branch(torch.nn.Module):
    """A branch of a layer with its norm, which is before it or after the sum."""

    def __init__(self, config):
        super().__init__()
        self.pre_norm = config.pre_norm
        self.layer_norm = torch.nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x, *more):
        if self.pre_norm:
            return x + self.branch(self.layer_norm(x), *more)
        return self.layer_norm(x + self.branch(x, *more))


class SelfAttention(Branch):
    """Attention with a row for each clipped distance key - query, for keys and for values."""

    def __init__(self, config):
        super().__init__(config)
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.linear_0 = torch.nn.Linear(width, 3 * width)
        self.linear_1 = torch.nn.Linear(width, width)
        clip = getattr(config, "max_relative_positions", 0) or config.max_position_embeddings - 1
        for part in ("keys", "values") if config.position_type == "relative" else ():
            if part == "keys" or config.relative_position_values:
                table = torch.nn.Embedding(2 * clip + 1, width // self.heads)
                self.add_module(f"relative_position_{part}", table)

    def branch(self, x, causal):
        q, k, v = (heads_of(y, self.heads) for y in self.linear_0(x).chunk(3, -1))
        length = x.shape[1]
        distances = torch.arange(length) - torch.arange(length)[:, None]
        scores = q @ k.transpose(2, 3)
        if hasattr(self, "relative_position_keys"):
            keys = self.relative_position_keys.weight
            clip = len(keys) // 2
            index = distances.clamp(-clip, clip) + clip
            scores = scores + torch.einsum("bhid,ijd->bhij", q, keys[index])
        scores = scores / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(distances > 0, -math.inf)
        weights = scores.softmax(-1)
        mixed = weights @ v
        if hasattr(self, "relative_position_values"):
            values = self.relative_position_values.weight
            mixed = mixed + torch.einsum("bhij,ijd->bhid", weights, values[index])
        return self.linear_1(mixed.transpose(1, 2).flatten(2))


class CrossAttention(Branch):
    """Attention to what the encoder made; keys and values are rows of one matrix."""

    def __init__(self, config):
        super().__init__(config)
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.linear_0 = torch.nn.Linear(width, width)
        self.linear_1 = torch.nn.Linear(width, 2 * width)
        self.linear_2 = torch.nn.Linear(width, width)

    def branch(self, x, source):
        q = heads_of(self.linear_0(x), self.heads)
        k, v = (heads_of(y, self.heads) for y in self.linear_1(source).chunk(2, -1))
        weights = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.linear_2((weights @ v).transpose(1, 2).flatten(2))


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class FeedForward(Branch):
    def __init__(self, config):
        super().__init__(config)
        self.linear_0 = torch.nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_1 = torch.nn.Linear(config.intermediate_size, config.hidden_size)

    def branch(self, x):
        return self.linear_1(self.linear_0(x).relu())


class Stack(torch.nn.Module):
    """The encoder, or the decoder."""

    main_input_name = "input_ids"

    def __init__(self, config, layers, cross, embeddings=None):
        super().__init__()
        self.config, self.sinusoids = config, None
        self.embeddings = embeddings or torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict({"self_attention": SelfAttention(config)}
                                | ({"attention": CrossAttention(config)} if cross else {})
                                | {"ffn": FeedForward(config)}) for _ in range(layers))
        if config.pre_norm:
            self.layer_norm = torch.nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        if cross and not config.tie_word_embeddings:
            self.projection = torch.nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, input_ids, source=None, **_):
        config, x = self.config, self.embeddings(input_ids)
        if config.scale_embedding:
            x = x * math.sqrt(config.hidden_size)
        if config.position_type == "sinusoidal":
            rows = self.sinusoids
            if rows is None:
                rows = sinusoids(64, config.hidden_size, config.sinusoid_layout)
            x = x + rows[: x.shape[1]].to(x)
        for layer in self.layers:
            x = layer["self_attention"](x, source is not None)
            if source is not None:
                x = layer["attention"](x, source)
            x = layer["ffn"](x)
        return BaseModelOutput(self.layer_norm(x) if config.pre_norm else x)


class PlainConfig(PreTrainedConfig):
    model_type = "transformer"


class PlainTransformer(PreTrainedModel, GenerationMixin):
    """The original Transformer, or one with the tables of Shaw et al.; see `plain`."""

    config_class = PlainConfig
    main_input_name = "input_ids"
    base_model_prefix = ""

    def __init__(self, config):
        super().__init__(config)
        self.encoder = Stack(config, config.num_encoder_layers, False)
        self.decoder = Stack(config, config.num_hidden_layers, True,
                             self.encoder.embeddings if config.share_embeddings else None)
        self.post_init()

    def get_encoder(self, *_, **__):
        return self.encoder

    def forward(self, input_ids=None, decoder_input_ids=None, encoder_outputs=None, **_):
        source = (encoder_outputs or self.encoder(input_ids)).last_hidden_state
        x = self.decoder(decoder_input_ids, source).last_hidden_state
        tied = self.config.tie_word_embeddings
        logits = x @ self.decoder.embeddings.weight.T if tied else self.decoder.projection(x)
        return Seq2SeqLMOutput(logits=logits, encoder_last_hidden_state=source)

    def tensors(self):
        """Those of a file; embeddings that both stacks have are the encoder's."""
        state = {name: x.clone() for name, x in self.state_dict().items()}
        if self.config.share_embeddings:
            del state["decoder.embeddings.weight"]
        return state


def reading(folder, reference={}):
    raw = json.loads((folder / "config.json").read_text())
    if raw["model_type"] == "transformer":
        model = PlainTransformer(PlainConfig(**raw)).eval()
        if (folder / "generation_config.json").exists():
            model.generation_config = GenerationConfig.from_pretrained(folder)
        return model
    config = AutoConfig.from_pretrained(folder, **reference)
    config._attn_implementation = "eager"
    model = getattr(transformers, raw["architectures"][0])(config).eval()
    if "t5" in raw["model_type"] and raw.get("tie_word_embeddings") is False:
        # The reference ties T5's head whatever this key says, unless the file has another one.
        model.lm_head.weight = torch.nn.Parameter(model.shared.weight.clone())
    return model


@torch.no_grad()
def outputs(model, given):
    """The encoder's last hidden state, and logits for each of the decoder's tokens."""
    found = model(input_ids=torch.tensor([given["tokens"]]),
                  decoder_input_ids=torch.tensor([given["decoder_tokens"]]), use_cache=False)
    return {"hidden": found.encoder_last_hidden_state[0].numpy(), "logits": found.logits[0].numpy()}


EMBEDDINGS = ("shared.weight", "embed_tokens.weight", "coder.embeddings.weight")
QUERIES = ("q_proj", "k_proj", "Attention.q.", "Attention.k.", "self_attention.linear_0",
           ".attention.linear_0")


def scatter(model, rng, fixed=(), embedding=1.3, gain=1.3):
    """Random weights as in make.py, of values that half precision has, but for tables `fixed`."""
    bucketed = "t5" in model.config.model_type
    last = getattr(model.config, "decoder_layers", model.config.num_hidden_layers) - 1
    last_norms = ("decoder.layer_norm.weight", "decoder.final_layer_norm.weight",
                  f"decoder.layers.{last}.ffn.layer_norm.weight",
                  f"decoder.layers.{last}.final_layer_norm.weight")
    for name, parameter in model.named_parameters():
        if name in fixed:
            continue
        x = rng.standard_normal(parameter.shape)
        if name.endswith("bias"):
            x *= 0.3
        elif name.endswith(last_norms):
            x *= 1.2  # of both signs, or a tied head would say again what was said last
        elif x.ndim == 1:
            x = 1 + 0.25 * x
        elif "relative_attention_bias" in name:
            x *= 1.5
        elif "relative_position" in name:
            x *= 0.7
        else:
            factor = gain
            if any(part in name for part in QUERIES):
                factor = 1.0 if bucketed else 1.7
            elif name.endswith(EMBEDDINGS):
                factor = embedding
            x *= factor / math.sqrt(x.shape[-1])
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(x).half().float())
    for name, parameter in model.named_parameters():
        if name.endswith(EMBEDDINGS) or name == "lm_head.weight":  # ends come early
            parameter.data[model.config.eos_token_id] *= 1.75
            parameter.data.copy_(parameter.data.half().float())
    if hasattr(model, "final_logits_bias"):
        x = 0.3 * rng.standard_normal(model.final_logits_bias.shape)
        model.final_logits_bias.copy_(torch.from_numpy(x).half().float())


# --------------------------------------------------------------------------------------------------
# Generation


class Noise(LogitsProcessor):
    """Adds what a correct implementation might be off by, several times over."""

    def __init__(self, size, seed):
        self.size, self.random = size, torch.Generator().manual_seed(seed)

    def __call__(self, tokens, scores):
        noise = torch.rand(scores.shape, generator=self.random) * 2 - 1
        return scores + self.size * noise.to(scores)


@torch.no_grad()
def generated(model, sources, settings, noise=None):
    """For each source ids after the start token, the end included, and the score of beams."""
    more = {"logits_processor": LogitsProcessorList([noise])} if noise else {}
    found = model.generate(
        torch.tensor(sources), attention_mask=torch.ones(len(sources), len(sources[0])),
        return_dict_in_generate=True, output_scores=True, use_cache=False, **settings, **more)
    rows = []
    for ids in found.sequences.tolist():
        ids = ids[1:]
        end = model.generation_config.eos_token_id
        rows.append(tuple(ids[: ids.index(end) + 1] if end in ids else ids))
    scores = getattr(found, "sequences_scores", None)
    return rows, [None] * len(rows) if scores is None else scores.tolist()


def unmoved(model, sources, settings, ids, size):
    """Those of the sources from which noise makes nothing else."""
    for seed in range(4):
        if sources:
            others, _ = generated(model, sources, settings, Noise(size, seed))
            kept = [x == y for x, y in zip(ids, others)]
            sources = [x for x, keep in zip(sources, kept) if keep]
            ids = [x for x, keep in zip(ids, kept) if keep]
    return sources


def generations(model, rng, variants, size):
    """A source for each variant, what it gives, and a score; None where no source was fair.

    A variant is settings that are laid over the model's own, and settings for comparison (or
    None), which have to give something else. `banned` ids that those give make one bad word.
    """
    rows = []
    for settings, otherwise in variants:
        settings = dict(settings)
        banned = settings.pop("banned", 0)
        for _ in range(12 if banned else 4):
            sources = random_sources(rng, model.config, 1 if banned else 48, rng.integers(6, 16))
            others = generated(model, sources, otherwise)[0] if otherwise is not None else None
            if banned:
                if len(others[0]) < 6:
                    continue
                settings["bad_words_ids"] = [list(others[0][2 : 2 + banned])]
            ids, _ = generated(model, sources, settings)
            fair = [i for i, x in enumerate(ids) if len(x) > 3 and len(set(x)) > 2
                    and (others is None or x != others[i])]
            if len(rows) % 2:  # as often as not, one that ends by itself
                fair.sort(key=lambda i: len(ids[i]))
            fair = unmoved(model, [sources[i] for i in fair], settings, [ids[i] for i in fair],
                           size)
            if fair:
                break
        else:
            print("no fair source for", settings)
            return None
        (alone,), (score,) = generated(model, fair[:1], settings)
        row = {"tokens": fair[0], "settings": settings, "ids": list(alone)}
        rows.append(row if score is None else row | {"score": round(score, 6)})
    return rows if len({len(row["ids"]) for row in rows}) > 1 else None


# --------------------------------------------------------------------------------------------------
# Families


def t5(architecture="T5ForConditionalGeneration", model_type="t5", **keys):
    return config_of(architecture, model_type, **{
        "vocab_size": 59, "d_model": 30, "d_kv": 8, "d_ff": 44, "num_layers": 3,
        "num_decoder_layers": 2, "num_heads": 3, "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128, "feed_forward_proj": "relu",
        "layer_norm_epsilon": 0.02, "is_encoder_decoder": True, "bos_token_id": ABSENT,
        "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0} | keys)


GREEDY = {"num_beams": 1, "max_new_tokens": 12}
BEAM = {"num_beams": 4, "max_new_tokens": 12}
MILD, STRONG = BEAM | {"length_penalty": 0.6}, BEAM | {"length_penalty": 2.0}
EARLY = STRONG | {"early_stopping": True}
NEVER = STRONG | {"early_stopping": "never"}
SHORT = BEAM | {"max_new_tokens": 6}
VARIANTS = [
    (GREEDY, BEAM), (BEAM, GREEDY), (MILD, STRONG), (STRONG, MILD), (EARLY, STRONG),
    (STRONG, EARLY), (NEVER, EARLY), (BEAM | {"min_length": 6}, BEAM),
    (BEAM | {"no_repeat_ngram_size": 2}, BEAM), (BEAM | {"banned": 1}, BEAM),
    (BEAM | {"banned": 2}, BEAM), (GREEDY | {"banned": 2}, GREEDY),
    (SHORT | {"forced_eos_token_id": 1}, SHORT),
]
OWN = [({}, None), ({"num_beams": 1}, {}), ({"num_beams": 2}, {})]

T5 = bucket_faults("T5Attention", **{
    "buckets of one side": setting_in_modules("T5Attention", is_decoder=True),
    "no bias": each_table("relative_attention_bias.weight", torch.zeros_like)})
UMT5 = bucket_faults("UMT5Attention", **{
    "buckets of one side": setting_in_modules("UMT5Attention", is_decoder=True)})
TIED_T5 = {"embedding": 7.0, "gain": 2.0}
GATED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=2,
             relative_attention_num_buckets=12, relative_attention_max_distance=23)


def bart_like(architecture, model_type, **keys):
    return config_of(architecture, model_type, **{
        "vocab_size": 59, "d_model": 30, "encoder_layers": 3, "encoder_ffn_dim": 52,
        "encoder_attention_heads": 3, "decoder_layers": 2, "decoder_ffn_dim": 44,
        "decoder_attention_heads": 5, "activation_function": "gelu",
        "max_position_embeddings": 40, "is_encoder_decoder": True, "scale_embedding": True,
        "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 2} | keys)


def marian(**keys):
    last = keys.get("decoder_vocab_size", 59) - 1
    return bart_like("MarianMTModel", "marian", **{
        "activation_function": "swish", "static_position_embeddings": True,
        "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
        "add_bias_logits": False, "bos_token_id": ABSENT, "eos_token_id": 0,
        "forced_eos_token_id": 0, "pad_token_id": last, "decoder_start_token_id": last} | keys)


SINUSOIDS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def both(faults):
    """Faults of both stacks from a function of a table's name."""
    return {f"{name} of {part}": fault for table, part in zip(SINUSOIDS, ("encoder", "decoder"))
            for name, fault in faults(table).items()}


def unscaled(*paths):
    return {f"{path} 1": scale_fault(path, 1.0) for path in paths}


def plain(**keys):
    """As in decoders.py, of two stacks.

    `num_hidden_layers` and `num_encoder_layers`, the decoder's and the encoder's; both stacks are
    alike but for attention between them, which has no tables. With `share_embeddings` both read
    `encoder.embeddings`; with `tie_word_embeddings` the decoder's are the head.
    """
    return decoders.plain(**{
        "vocab_size": 59, "is_encoder_decoder": True, "num_encoder_layers": 3,
        "share_embeddings": False, "pad_token_id": 0, "bos_token_id": ABSENT, "eos_token_id": 1,
        "decoder_start_token_id": 0} | keys)


def plain_sinusoid_fault(layout, planes=None, base=10000.0, start=0):
    def fault(model):
        table = sinusoids(64 + start, model.config.hidden_size, layout, planes, base)[start:]
        model.encoder.sinusoids = model.decoder.sinusoids = table

    return fault


TABLES = ("relative_position_keys.weight", "relative_position_values.weight")
SHAW = {"tables one row off": each_table(TABLES, lambda x: x.roll(1, 0)),
        "other direction": each_table(TABLES, lambda x: x.flip(0)),
        "no keys' table": each_table(TABLES[0], torch.zeros_like),
        "epsilon": with_small_epsilons}
NO_VALUES = {"no values' table": each_table(TABLES[1], torch.zeros_like)}
NEARER = {"clipped nearer": each_table(TABLES, lambda x: x[1:-1])}
HALVES = both(lambda name: table_faults(name) | sinusoid_faults(name, "halves"))
LEARNED = both(table_faults)
MARIAN_SCALES = unscaled("model.encoder.embed_scale", "model.decoder.embed_scale")
SCALES = unscaled(
    "model.encoder.embed_tokens.embed_scale", "model.decoder.embed_tokens.embed_scale")
MARIAN_OWN = dict(bad_words_ids=[[58]], forced_eos_token_id=0, num_beams=4, max_length=14,
                  eos_token_id=0, pad_token_id=58, decoder_start_token_id=58)
LAST_BIAS = {"final_logits_bias": with_table("final_logits_bias", torch.zeros_like)}

CASES = {
    "t5": dict(
        about="t5 v1.0: three encoder layers and two decoder layers, three heads of 8 in 30, 32 "
              "buckets up to 128 and a longer input; relu, logits times the root of 1/30; tied; "
              "epsilon 0.02",
        config=t5(), inputs=[(150, 30), (9, 5)], gains=TIED_T5, faults=T5),
    "t5_gated": dict(
        about="t5 v1.1: two layers of either kind, 12 buckets up to 23 and longer inputs and "
              "outputs; gated tanh gelu, its own head, logits as they are",
        config=t5(**GATED), inputs=[(40, 30), (7, 9)], faults=T5),
    "mt5": dict(
        about="mt5: as t5 v1.1, with four heads of 5 in 28, three decoder layers",
        config=t5("MT5ForConditionalGeneration", "mt5", **GATED | dict(
            d_model=28, num_heads=4, d_kv=5, num_decoder_layers=3)),
        inputs=[(40, 30), (7, 9)],
        faults=bucket_faults("MT5Attention"), variants=VARIANTS[:4]),
    "umt5": dict(
        about="umt5: a table in each layer; gated tanh gelu, its own head",
        config=t5("UMT5ForConditionalGeneration", "umt5", **GATED), inputs=[(40, 30), (7, 9)],
        faults=UMT5, variants=VARIANTS[:4]),
    "marian": dict(
        about="marian (opus-mt's shape): sines, then cosines, embeddings times the root of 30, "
              "norms after the branches, swish, final_logits_bias; one vocabulary; the padding id "
              "is the start and a bad word; no table in the file",
        config=marian(share_encoder_decoder_embeddings=True), generation=MARIAN_OWN,
        tables=SINUSOIDS, rename=without("embed_positions"), inputs=[(40, 30), (7, 9)],
        faults=HALVES | MARIAN_SCALES | LAST_BIAS,
        variants=OWN + VARIANTS[:-1] + [(SHORT, SHORT | {"forced_eos_token_id": None})]),
    "marian_settings_in_config": dict(
        about="marian: the settings of generation in config.json, and no generation_config.json; "
              "tables in the file",
        config=marian(**MARIAN_OWN), generation={}, tables=SINUSOIDS, inputs=[(40, 30), (7, 9)],
        faults=HALVES | MARIAN_SCALES | LAST_BIAS, variants=OWN),
    "marian_separate": dict(
        about="marian (opus-mt-tc-big's shape): vocabularies of 59 and 47, a head of its own, "
              "relu",
        config=marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=47,
                      tie_word_embeddings=False, activation_function="relu"),
        generation=MARIAN_OWN | dict(bad_words_ids=[[46]], pad_token_id=46,
                                     decoder_start_token_id=46, num_beams=4),
        tables=SINUSOIDS, inputs=[(40, 30), (7, 9)], faults=HALVES | MARIAN_SCALES | LAST_BIAS,
        variants=OWN),
    "bart": dict(
        about="bart: learned positions from row 2, embeddings as they are, a norm on them, norms "
              "after the branches; the first and the last id forced",
        config=bart_like("BartForConditionalGeneration", "bart", scale_embedding=False),
        generation=dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2,
                        forced_bos_token_id=0, forced_eos_token_id=2, num_beams=4,
                        no_repeat_ngram_size=3, early_stopping=True, length_penalty=2.0,
                        min_length=5, max_length=16),
        inputs=[(40, 30), (7, 9)], faults=LEARNED | LAST_BIAS,
        variants=OWN + [({"no_repeat_ngram_size": 0}, {}), ({"early_stopping": False}, {}),
                        ({"forced_bos_token_id": None}, {}), ({"length_penalty": 0.5}, {}),
                        ({"max_new_tokens": 7}, {"max_new_tokens": 7,
                                                 "forced_eos_token_id": None})]),
    "mbart": dict(
        about="mbart: learned positions from row 2, embeddings times the root of 30, a norm on "
              "them, norms before the branches and a last one; starts with a language (57)",
        config=bart_like("MBartForConditionalGeneration", "mbart", normalize_before=True,
                         add_final_layer_norm=True, normalize_embedding=True,
                         decoder_start_token_id=57),
        generation=dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=57,
                        forced_eos_token_id=2, num_beams=5, early_stopping=True, max_length=14),
        inputs=[(40, 30), (7, 9)], faults=LEARNED | SCALES | LAST_BIAS, variants=OWN),
    "mbart50": dict(
        about="mbart-50: starts with the end, and its first id is forced to be a language (56); "
              "another is asked for",
        config=bart_like("MBartForConditionalGeneration", "mbart", normalize_before=True,
                         add_final_layer_norm=True, normalize_embedding=True,
                         activation_function="relu", decoder_layers=3, encoder_layers=2),
        generation=dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2,
                        forced_bos_token_id=56, forced_eos_token_id=2, num_beams=5,
                        early_stopping=True, max_length=14),
        inputs=[(40, 30), (7, 9)], faults=LEARNED | SCALES | LAST_BIAS,
        variants=OWN + [({"forced_bos_token_id": 55}, {})]),
    "m2m_100": dict(
        about="m2m_100 and nllb: fairseq's sinusoids from row 2, embeddings times the root of 30, "
              "norms before the branches and a last one, relu; a forced language (57); 24 "
              "positions, which the first input leaves behind, as the reference's table grows",
        config=bart_like("M2M100ForConditionalGeneration", "m2m_100", activation_function="relu",
                         max_position_embeddings=24),
        generation=dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2,
                        forced_bos_token_id=57, num_beams=4, max_length=14),
        inputs=[(40, 30), (7, 9)], context=64,
        faults=SCALES | {
            f"{name} of {part}": fault for part in ("encoder", "decoder")
            for table in [f"model.{part}.embed_positions.weights"]
            for name, fault in ({"table one row off": with_table(
                table, lambda x: x.roll(-1, 0))} | sinusoid_faults(table, "halves", True)).items()},
        variants=OWN + [({"forced_bos_token_id": 55}, {}), ({"length_penalty": 2.0}, {})]),
    "m2m_100_odd_width": dict(
        about="m2m_100: width 35, whose last channel has no position; embeddings as they are",
        config=bart_like("M2M100ForConditionalGeneration", "m2m_100", activation_function="gelu",
                         d_model=35, encoder_attention_heads=5, decoder_attention_heads=7,
                         scale_embedding=False, encoder_layers=2),
        inputs=[(30, 20), (7, 9)], gains={"embedding": 3.0},
        faults={
            f"{name} of {part}": fault for part in ("encoder", "decoder")
            for table in [f"model.{part}.embed_positions.weights"]
            for name, fault in ({"table one row off": with_table(
                table, lambda x: x.roll(-1, 0))} | sinusoid_faults(table, "halves", True)).items()},
        variants=VARIANTS[:2]),
    "pegasus": dict(
        about="pegasus: sines, then cosines, embeddings times the root of 30, norms before the "
              "branches and a last one, relu; no tables in the file",
        config=bart_like("PegasusForConditionalGeneration", "pegasus", activation_function="relu",
                         bos_token_id=ABSENT, pad_token_id=0, eos_token_id=1,
                         decoder_start_token_id=0, forced_eos_token_id=1, normalize_before=True,
                         add_final_layer_norm=True, static_position_embeddings=True,
                         extra_pos_embeddings=1),
        generation=dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
                        forced_eos_token_id=1, num_beams=8, length_penalty=0.6, max_length=14),
        tables=SINUSOIDS, rename=without("embed_positions"), inputs=[(40, 30), (7, 9)],
        faults=HALVES | MARIAN_SCALES | LAST_BIAS, variants=OWN),
    "transformer_translator_relative": dict(
        about="both stacks with Shaw's tables for keys and values, clipped at 6, none between the "
              "stacks; norms first and a last one, relu, embeddings of their own and a biased head",
        config=plain(), inputs=[(40, 30), (7, 9)], faults=SHAW | NO_VALUES | NEARER,
        variants=VARIANTS[:4]),
    "transformer_translator_relative_keys": dict(
        about="both stacks with Shaw's table for keys alone, a row for each of 44 distances to "
              "either side; norms after the branches; one embedding for both stacks and the head",
        config=plain(relative_position_values=False, max_relative_positions=0, pre_norm=False,
                     max_position_embeddings=45, tie_word_embeddings=True, share_embeddings=True),
        inputs=[(40, 30), (7, 9)], faults=SHAW, variants=VARIANTS[:2]),
    "transformer_translator": dict(
        about="the original Transformer: interleaved sinusoids, embeddings times the root of 30, "
              "norms after the branches, relu; one embedding for both stacks and the head",
        config=plain(position_type="sinusoidal", sinusoid_layout="interleaved", pre_norm=False,
                     max_relative_positions=ABSENT, relative_position_values=ABSENT,
                     tie_word_embeddings=True, share_embeddings=True),
        inputs=[(40, 30), (7, 9)], variants=VARIANTS[:4],
        faults={"table one row off": plain_sinusoid_fault("interleaved", start=1),
                "another layout": plain_sinusoid_fault("halves"),
                "another step": plain_sinusoid_fault("interleaved", planes=14),
                "base 1.1": plain_sinusoid_fault("interleaved", base=11000.0),
                "epsilon": with_small_epsilons}),
}


# --------------------------------------------------------------------------------------------------


def random_tokens(rng, config, vocabulary, shape):
    """Ids other than those that mean something."""
    special = {getattr(config, key, None) for key in
               ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")}
    return rng.choice([x for x in range(vocabulary) if x not in special], shape)


def random_sources(rng, config, count, length):
    tokens = random_tokens(rng, config, config.vocab_size, (count, length))
    tokens[:, -1] = config.eos_token_id
    return tokens.tolist()


def random_input(rng, config, lengths):
    targets = getattr(config, "decoder_vocab_size", config.vocab_size)
    return {"tokens": random_sources(rng, config, 1, lengths[0])[0],
            "decoder_tokens": [config.decoder_start_token_id,
                               *random_tokens(rng, config, targets, lengths[1] - 1).tolist()]}


def record(folder, model, case, inputs, rng):
    """Writes arrays and expected.json; False when some margin is too small for a fair test."""
    found = [outputs(model, given) for given in inputs]
    kinds = list(found[0])
    ranges = {kind: largest([x[kind] for x in found]) for kind in kinds}

    def moved(others, kind):
        return max(float(np.abs(a[kind] - b[kind]).max())
                   for a, b in zip(found, others)) / ranges[kind]

    truth = [in_double(outputs)(model, given) for given in inputs]
    noise = max(moved(truth, kind) for kind in kinds)
    if noise > TOLERANCE / 10 or min(ranges.values()) < 4:
        print(f"{folder.name}: noise {noise:.1e}, {ranges}")
        return False
    faults = {}
    for name, fault in case["faults"].items():
        wrong = copy.deepcopy(model)
        fault(wrong)
        faults[name] = moved([outputs(wrong, given) for given in inputs], "logits")
    print(f"{folder.name}: noise {noise:.1e}, "
          + ", ".join(f"{kind} {x:.2f}" for kind, x in (ranges | faults).items()))
    if min(faults.values()) < 100 * TOLERANCE:
        return False
    rows = generations(model, rng, case.get("variants", VARIANTS), 5 * TOLERANCE * ranges["logits"])
    if rows is None:
        return False
    described = []
    for i, (given, arrays) in enumerate(zip(inputs, found)):
        files = {kind: f"{kind}_{i}.npy" for kind in kinds}
        for kind, file in files.items():
            np.save(folder / file, arrays[kind].astype(np.float32))
        described.append(given | files)
    expected = {"description": case["about"], "source": case.get("source", "folder"),
                "inputs": described, "generated": rows,
                "ranges": {kind: round(x, 5) for kind, x in ranges.items()},
                "disturbance": round(min(faults.values()), 5)}
    if "context" in case:
        expected["context"] = case["context"]
    (folder / "expected.json").write_text(one_line_lists(expected) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert size < FOLDER_LIMIT, f"{folder.name} has {size} bytes"
    return True


def make_folder(name):
    case = CASES[name]
    config, reference = case["config"], case.get("reference", {})

    def make(folder, rng):
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        settings = case.get("generation", {
            k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id",
                                   "decoder_start_token_id") if k in config})
        if settings:
            (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        model = reading(folder, reference)
        fixed = case.get("tables", ())
        scatter(model, rng, fixed, **case.get("gains", {}))
        plainly = isinstance(model, PlainTransformer)
        state = model.tensors() if plainly else checkpoint(model)
        state = {n: x.float() if n in fixed else x.half() for n, x in state.items()}
        tidy(folder, case.get("rename", dict)(state))
        if plainly:
            read, state = reading(folder), load_file(folder / "model.safetensors")
            missing, unexpected = read.load_state_dict(
                {n: x.float() for n, x in state.items()}, strict=False)
            assert not unexpected and set(missing) <= {"decoder.embeddings.weight"}
        else:
            read = type(model).from_pretrained(folder, attn_implementation="eager",
                                               dtype=torch.float32, **reference).eval()
        inputs = [random_input(rng, model.config, x) for x in case["inputs"]]
        ours, theirs = outputs(model, inputs[1]), outputs(read, inputs[1])
        assert all(np.array_equal(ours[kind], theirs[kind]) for kind in ours)
        return record(folder, read, case, inputs, rng)

    attempt(case.get("seed", name), make, home(name), 300)


# --------------------------------------------------------------------------------------------------
# GGUF


GGUFS = {
    "gguf_t5": dict(
        about="GGUF, t5: three encoder layers (block_count) and two decoder layers, 12 buckets up "
              "to 128, which no key mentions, and a longer input; gated tanh gelu, its own head, "
              "logits as they are",
        config=t5(**GATED | dict(num_layers=3, relative_attention_max_distance=128)),
        inputs=[(140, 24), (7, 9)], faults=T5, variants=VARIANTS[:4], source="model.gguf"),
    "gguf_umt5": dict(
        about="GGUF, t5: a umt5, which is written as one, with a table in each layer; otherwise as "
              "gguf_t5, but for two encoder layers",
        config=t5("UMT5ForConditionalGeneration", "umt5",
                  **GATED | dict(relative_attention_max_distance=128)),
        inputs=[(140, 24), (7, 9)], faults=UMT5, variants=VARIANTS[:4], source="model.gguf"),
}


def make_gguf(name):
    case = GGUFS[name]
    raw = case["config"]

    def make(folder, rng):
        (folder / "config.json").write_text(json.dumps(raw))
        model = reading(folder)
        (folder / "config.json").unlink()
        scatter(model, rng)
        write_gguf(folder / case["source"], "t5", checkpoint(model), t5_keys(raw) | {
            "add_decoder_block_count": raw["num_decoder_layers"],
            "add_decoder_start_token_id": 0, "add_eos_token_id": 1, "add_pad_token_id": 0})
        inputs = [random_input(rng, model.config, x) for x in case["inputs"]]
        return record(folder, model, case, inputs, rng)

    attempt(name, make, home(name), 300)


# --------------------------------------------------------------------------------------------------


if __name__ == "__main__":
    make_named(CASES | GGUFS, sys.argv[1:],
               lambda name: (make_folder if name in CASES else make_gguf)(name))
