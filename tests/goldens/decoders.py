#!/usr/bin/env python3
"""Makes the goldens of decoders whose positions are added to embeddings or are relative.

    decoders.py [NAME...]          all that this version of transformers can make, or those named

Sinusoids of every layout, learned tables with an offset, T5's buckets, and the tables of Shaw et
al., under the conditions of make.py. The reference is transformers 5.24.0, except that

* `bert_*` need transformers 4.47.1, which still has relative keys (5.x has dropped them);
* T5 and umT5 are the reference's decoder stack with a head, since no class has them alone (nor
  does their configuration name one);
* `transformer_*` is the decoder below, written from equations 3 to 5 of arXiv:1803.02155 and from
  arXiv:1706.03762, in float64. Its tensors have the names that CTranslate2 gives a decoder's,
  with dots.

Folders go where those of families.py go.
"""

import copy
import json
import math
import sys
import types

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig

from families import (ABSENT, PROMPT, attempt, checkpoint, config_of, gated, greedy, keep,
                      logits_in_double, logits_of, make_named)
from make import HERE, TOLERANCE, spread, tidy

VERSION_5 = int(transformers.__version__.split(".")[0]) >= 5


# --------------------------------------------------------------------------------------------------
# Reference models


class BucketedDecoder(torch.nn.Module):
    """The decoder of T5 or umT5 without an encoder: the reference's stack, and a head."""

    def __init__(self, config):
        super().__init__()
        from transformers.models.t5.modeling_t5 import T5Stack
        from transformers.models.umt5.modeling_umt5 import UMT5Stack

        self.config = config
        self.decoder = (UMT5Stack if config.model_type == "umt5" else T5Stack)(config)
        self.lm_head = torch.nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.scale = 1.0
        if config.scale_decoder_outputs:  # the file's tie_word_embeddings is not false
            self.lm_head.weight = self.decoder.embed_tokens.weight
            self.scale = config.d_model**-0.5

    def forward(self, tokens, use_cache):
        hidden = self.decoder(tokens, use_cache=use_cache).last_hidden_state
        return types.SimpleNamespace(logits=self.lm_head(hidden * self.scale))

    def tensors(self):
        """Those of a file: a real one has more, the cross-attention's of `layer.1`."""
        state = {name.replace("decoder.embed_tokens", "shared"): x.clone()
                 for name, x in self.state_dict().items() if ".layer.1." not in name}
        if self.config.scale_decoder_outputs:
            del state["lm_head.weight"]
        return state

    def read(self, state):
        state = {name.replace("shared", "decoder.embed_tokens"): x for name, x in state.items()}
        if self.config.scale_decoder_outputs:
            state["lm_head.weight"] = state["decoder.embed_tokens.weight"]
        missing, unexpected = self.load_state_dict(state, strict=False)
        assert not unexpected and all(".layer.1." in name for name in missing)


class PlainDecoder(torch.nn.Module):
    """The Transformer's decoder without an encoder; its configuration is that of `plain`."""

    def __init__(self, config):
        super().__init__()
        self.config = types.SimpleNamespace(**config)
        width, inner = config["hidden_size"], config["intermediate_size"]
        head_dim = width // config["num_attention_heads"]
        clip = config.get("max_relative_positions") or config["max_position_embeddings"] - 1

        def parameter(name, *shape):
            self.register_parameter("decoder/" + name, torch.nn.Parameter(torch.zeros(*shape)))

        def norm(at):
            parameter(at + "layer_norm/weight", width)
            parameter(at + "layer_norm/bias", width)

        def linear(at, rows, columns):
            parameter(at + "/weight", rows, columns)
            parameter(at + "/bias", rows)

        parameter("embeddings/weight", config["vocab_size"], width)
        for layer in range(config["num_hidden_layers"]):
            at = f"layers/{layer}/self_attention/"
            norm(at)
            linear(at + "linear_0", 3 * width, width)  # queries, keys, values
            linear(at + "linear_1", width, width)
            if config["position_type"] == "relative":
                parameter(at + "relative_position_keys/weight", 2 * clip + 1, head_dim)
                if config["relative_position_values"]:
                    parameter(at + "relative_position_values/weight", 2 * clip + 1,
                              head_dim)
            at = f"layers/{layer}/ffn/"
            norm(at)
            linear(at + "linear_0", inner, width)
            linear(at + "linear_1", width, inner)
        if config["pre_norm"]:
            norm("")
        if not config["tie_word_embeddings"]:
            linear("projection", config["vocab_size"], width)

    def of(self, name):
        return self.get_parameter("decoder/" + name)

    def norm(self, at, x):
        return torch.nn.functional.layer_norm(
            x, x.shape[-1:], self.of(at + "layer_norm/weight"), self.of(at + "layer_norm/bias"),
            self.config.layer_norm_eps)

    def linear(self, at, x):
        return torch.nn.functional.linear(x, self.of(at + "/weight"), self.of(at + "/bias"))

    def attention(self, at, x):
        heads, length = self.config.num_attention_heads, len(x)
        q, k, v = (part.view(length, heads, -1).transpose(0, 1)
                   for part in self.linear(at + "linear_0", x).chunk(3, -1))
        distances = torch.arange(length) - torch.arange(length)[:, None]  # j - i
        scores = torch.einsum("hid,hjd->hij", q, k)
        names = dict(self.named_parameters())
        keys = names.get(f"decoder/{at}relative_position_keys/weight")
        values = names.get(f"decoder/{at}relative_position_values/weight")
        if keys is not None:
            clip = len(keys) // 2
            index = distances.clamp(-clip, clip) + clip
            scores = scores + torch.einsum("hid,ijd->hij", q, keys[index])
        scores = scores / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(distances > 0, -math.inf).softmax(-1)
        mixed = torch.einsum("hij,hjd->hid", weights, v)
        if values is not None:
            mixed = mixed + torch.einsum("hij,ijd->hid", weights, values[index])
        return self.linear(at + "linear_1", mixed.transpose(0, 1).reshape(length, -1))

    def ffn(self, at, x):
        return self.linear(at + "linear_1", self.linear(at + "linear_0", x).relu())

    def forward(self, tokens, use_cache):
        config, table = self.config, self.of("embeddings/weight")
        x = table[tokens[0]]
        if config.scale_embedding:
            x = x * math.sqrt(config.hidden_size)
        if config.position_type == "sinusoidal":
            rows = getattr(self, "sinusoids", None)
            if rows is None:
                rows = sinusoids(len(x), config.hidden_size, config.sinusoid_layout)
            x = x + rows[: len(x)].to(x)
        for layer in range(config.num_hidden_layers):
            for branch, name in [(self.attention, "self_attention"), (self.ffn, "ffn")]:
                at = f"layers/{layer}/{name}/"
                if config.pre_norm:
                    x = x + branch(at, self.norm(at, x))
                else:
                    x = self.norm(at, x + branch(at, x))
        if config.pre_norm:
            x = self.norm("", x)
        logits = x @ table.T if config.tie_word_embeddings else self.linear("projection", x)
        return types.SimpleNamespace(logits=logits[None])

    def tensors(self):  # whose names torch would not take with their dots
        return {name.replace("/", "."): x.clone() for name, x in self.state_dict().items()}

    def read(self, state):
        self.load_state_dict({name.replace(".", "/"): x for name, x in state.items()})


def sinusoids(rows, width, layout, planes=None, base=10000.0):
    """Sines and cosines of p / base^(i / planes), in float64; fairseq's planes are width/2 - 1."""
    sines, cosines = (width + 1) // 2, width // 2
    rates = base ** (-np.arange(sines) / (planes or width / 2))
    angles = torch.from_numpy(np.arange(rows)[:, None] * rates)
    table = torch.cat((angles.sin(), angles[:, :cosines].cos()), -1)
    return interleaved(table) if layout == "interleaved" else table


def interleaved(table):
    """A table of sines, then cosines, with its channels in turn."""
    width = table.shape[-1]
    order = [i // 2 + i % 2 * ((width + 1) // 2) for i in range(width)]
    return table[:, order]


def reading(folder, reference):
    """A model of the configuration in `folder`, whose keys in `reference` are those given."""
    raw = json.loads((folder / "config.json").read_text())
    if raw["model_type"] == "transformer":
        return PlainDecoder(raw).eval()
    config = AutoConfig.from_pretrained(folder, **reference)
    config._attn_implementation = "eager"
    if "architectures" not in raw:
        return BucketedDecoder(config).eval()
    model = getattr(transformers, raw["architectures"][0])(config).eval()
    if raw["model_type"] == "xlm":  # which takes its padding token for the end of the text
        model.register_forward_pre_hook(
            lambda _, inputs, more: (inputs, more | {"attention_mask": torch.ones_like(*inputs)}),
            with_kwargs=True)
    return model


EMBEDDINGS = ("embed_tokens.weight", "transformer.embeddings.weight", "transformer.w.weight",
              "word_embeddings.weight", "decoder/embeddings/weight")


def scatter(model, rng, fixed, embedding=1.3, gain=1.3):
    """Random weights as in make.py; `fixed` is the name of a table that is not random.

    `embedding` and `gain` are those of the embedding and of matrices other than queries and keys.
    """
    bucketed = isinstance(model, BucketedDecoder)
    queries = ("q_proj", "k_proj", "q_lin", "k_lin", "Wq", "Wk", ".query.", ".key.",
               "self_attention/linear_0", "SelfAttention.q.", "SelfAttention.k.")
    for name, parameter in model.named_parameters():
        if name == fixed:
            continue
        x = rng.standard_normal(parameter.shape)
        if name.endswith("bias"):
            x *= 0.3
        elif x.ndim == 1:
            x = 1 + 0.25 * x
        elif "relative_attention_bias" in name:
            x *= 1.5
        elif "distance_embedding" in name or "relative_position" in name:
            x *= 0.7
        else:
            factor = gain
            if any(part in name for part in queries):
                factor = 1.0 if bucketed else 1.7
            elif name.endswith(EMBEDDINGS):
                factor = embedding
            x *= factor / math.sqrt(x.shape[-1])
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(x))


# --------------------------------------------------------------------------------------------------
# Faults: functions that put a model a little wrong


def table_of(model, name):
    owner, _, leaf = name.rpartition(".")
    return model.get_submodule(owner), leaf


def with_table(name, change):
    """A fault that replaces the tensor `name` by change(tensor)."""

    def fault(model):
        owner, leaf = table_of(model, name)
        with torch.no_grad():
            getattr(owner, leaf).data = change(getattr(owner, leaf).data.clone())

    return fault


def table_faults(name):
    return {"table one row off": with_table(name, lambda x: x.roll(-1, 0)),
            "no positions": with_table(name, torch.zeros_like)}


def sinusoid_faults(name, layout, fairseq=False):
    """Those of a table of sinusoids: another base, another layout, the other kind of step."""

    def as_if(layout, fairseq, base=10000.0):
        def change(x):
            rows, width = x.shape
            if not fairseq:
                return sinusoids(rows, width, layout, base=base).to(x)
            even = sinusoids(rows, width // 2 * 2, layout, width // 2 - 1, base).to(x)
            return torch.nn.functional.pad(even, (0, width % 2))

        return with_table(name, change)

    other = "halves" if layout == "interleaved" else "interleaved"
    return {"base 1.1": as_if(layout, fairseq, 11000.0), "another layout": as_if(other, fairseq),
            "another step": as_if(layout, not fairseq)}


def scale_fault(path, scale):
    """A fault that sets an embedding's scale."""

    def fault(model):
        owner, leaf = table_of(model, path)
        setattr(owner, leaf, scale)

    return fault


def setting_in_modules(type_name, **values):
    """A fault that sets attributes of all modules of a type."""

    def fault(model):
        for module in model.modules():
            if type(module).__name__ == type_name:
                for key, value in values.items():
                    setattr(module, key, value(module) if callable(value) else value)

    return fault


def with_small_epsilons(model):
    for module in model.modules():
        for key in ("eps", "variance_epsilon"):
            if getattr(module, key, 0) > 1e-3:
                setattr(module, key, 1e-5)
    if hasattr(model.config, "layer_norm_eps") and isinstance(model, PlainDecoder):
        model.config.layer_norm_eps = 1e-5


def each_table(ending, change):
    """A fault that replaces every parameter whose name ends so."""

    def fault(model):
        for name, parameter in model.named_parameters():
            if name.endswith(ending):
                parameter.data = change(parameter.data.clone())

    return fault


def bucket_faults(kind, **more):
    return {"table one row off": each_table("relative_attention_bias.weight",
                                            lambda x: x.roll(1, 0)),
            "distances 1.25": setting_in_modules(
                kind, relative_attention_max_distance=lambda x: int(
                    1.25 * x.relative_attention_max_distance)),
            "buckets of both sides": setting_in_modules(kind, is_decoder=False),
            "epsilon": with_small_epsilons} | more


def one_table(model):
    """umT5's layers with the first one's table."""
    tables = [x for name, x in model.named_parameters() if "relative_attention_bias" in name]
    for table in tables[1:]:
        table.data = tables[0].data.clone()


def scaled_scores(model):
    """T5's scores divided by the root of the head's width."""
    for name, x in model.named_parameters():
        if "SelfAttention.q." in name:
            x.data = x.data * model.config.d_kv**-0.5


KEYS, VALUES = "relative_position_keys/weight", "relative_position_values/weight"


def shaw_faults(**more):
    ends = (KEYS, VALUES)
    return {"table one row off": each_table(ends, lambda x: x.roll(1, 0)),
            "other direction": each_table(ends, lambda x: x.flip(0)),
            "no keys' table": each_table(ends[0], torch.zeros_like)} | more


def nearer_clip(ends):
    return each_table(ends, lambda x: x[1:-1])


def relative_kind(kind):
    return setting_in_modules("BertSelfAttention", position_embedding_type=kind)


def with_absolute(model):
    model.bert.embeddings.position_embedding_type = "absolute"


def rotating(model):
    for layer in model.model.layers:
        layer.self_attn.use_rope = True


# --------------------------------------------------------------------------------------------------
# Families


def xglm(**keys):
    return config_of("XGLMForCausalLM", "xglm", **{
        "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4,
        "activation_function": "gelu", "max_position_embeddings": 128, "scale_embedding": True,
        "add_cross_attention": False, "decoder_start_token_id": 2, "bos_token_id": 0,
        "pad_token_id": 1, "eos_token_id": 2} | keys)


def seq2seq(architecture, model_type, **keys):
    """The decoder of a model whose encoder is left out, with the keys of the whole."""
    return config_of(architecture, model_type, **{
        "d_model": 30, "encoder_layers": 6, "encoder_ffn_dim": 64, "encoder_attention_heads": 2,
        "decoder_layers": 2, "decoder_ffn_dim": 44, "decoder_attention_heads": 5,
        "activation_function": "gelu", "max_position_embeddings": 96, "scale_embedding": True,
        "is_decoder": True, "is_encoder_decoder": False, "decoder_start_token_id": 0,
        "pad_token_id": 0, "tie_word_embeddings": True} | keys)


def marian(**keys):
    return seq2seq("MarianForCausalLM", "marian", **{
        "activation_function": "swish", "static_position_embeddings": True,
        "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
        "add_bias_logits": False, "decoder_vocab_size": 96} | keys)


def xlm(**keys):
    return config_of("XLMWithLMHeadModel", "xlm", **{
        "emb_dim": 30, "n_layers": 2, "n_heads": 5, "gelu_activation": True, "causal": True,
        "asm": False, "n_langs": 1, "use_lang_emb": True, "is_encoder": True,
        "sinusoidal_embeddings": True, "max_position_embeddings": 64, "layer_norm_eps": 0.02,
        "vocab_size": 80, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2} | keys)


def ctrl(**keys):
    return config_of("CTRLLMHeadModel", "ctrl", **{
        "n_embd": 30, "dff": 52, "n_layer": 2, "n_head": 5, "n_positions": 64, "n_ctx": 64,
        "layer_norm_epsilon": 0.5} | keys)


def t5(model_type="t5", **keys):
    return config_of(None, model_type, **{
        "architectures": ABSENT, "d_model": 30, "d_kv": 8, "d_ff": 44, "num_layers": 3,
        "num_decoder_layers": 3, "num_heads": 3, "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128, "feed_forward_proj": "relu",
        "layer_norm_epsilon": 0.02, "is_decoder": True, "is_encoder_decoder": False,
        "bos_token_id": ABSENT, "eos_token_id": 1, "pad_token_id": 0,
        "decoder_start_token_id": 0} | keys)


def bert(**keys):
    return config_of("BertLMHeadModel", "bert", **{
        "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 5, "hidden_act": "gelu", "max_position_embeddings": 64,
        "type_vocab_size": 2, "layer_norm_eps": 0.02, "is_decoder": True, "pad_token_id": 0,
        "position_embedding_type": "relative_key"} | keys)


def plain(**keys):
    """The decoder's own configuration.

    `position_type`: "relative" or "sinusoidal" (with `sinusoid_layout` "interleaved" or "halves").
    `max_relative_positions`: Shaw's clipping distance k, whose tables have 2k + 1 rows, that of
    key - query = -k first; 0 for no clip, with a row for every distance below
    max_position_embeddings. `relative_position_values`: whether values have a table too.
    """
    return config_of(None, "transformer", **{
        "architectures": ABSENT, "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 5, "hidden_act": "relu", "layer_norm_eps": 0.02,
        "pre_norm": True, "scale_embedding": True, "max_position_embeddings": 64,
        "position_type": "relative", "max_relative_positions": 6,
        "relative_position_values": True, "tie_word_embeddings": False} | keys)


def sinusoidal_plain(**keys):
    return plain(position_type="sinusoidal", max_relative_positions=ABSENT,
                 relative_position_values=ABSENT, **keys)


def plain_sinusoid_fault(layout, planes=None, base=10000.0, start=0):
    def fault(model):
        width = model.config.hidden_size
        model.sinusoids = sinusoids(64 + start, width, layout, planes, base)[start:]

    return fault


def without(*parts):
    """The tensors whose names have none of these parts."""

    def rename(state):
        return {name: x for name, x in state.items() if not any(part in name for part in parts)}

    return rename


# Without larger branches, what a tied head reads after norms first is the embedding itself.
PRE = {"embedding": 0.9, "gain": 2.2}
XGLM_TABLE = "model.embed_positions.weights"
DECODER_TABLE = "model.decoder.embed_positions.weight"
XLM_TABLE = "transformer.position_embeddings.weight"
CTRL_TABLE = "transformer.pos_encoding"
BERT_TABLE = "bert.embeddings.position_embeddings.weight"
HALVES = table_faults(DECODER_TABLE) | sinusoid_faults(DECODER_TABLE, "halves")

CASES = {
    "xglm": dict(
        about="xglm: fairseq's sinusoids from row 2 (whose step is that of width/2 - 1), "
              "embeddings times the root of 32, norms first; tied",
        config=xglm(), gains=PRE,
        faults=table_faults(XGLM_TABLE) | sinusoid_faults(XGLM_TABLE, "halves", True)
        | {"embeddings as they are": scale_fault("model.embed_tokens.embed_scale", 1.0)}),
    "xglm_odd_width": dict(
        about="xglm: width 35, whose last channel has no position; embeddings as they are",
        config=xglm(d_model=35, attention_heads=5, scale_embedding=False), gains={"embedding": 3.0},
        faults=table_faults(XGLM_TABLE) | sinusoid_faults(XGLM_TABLE, "halves", True)
        | {"scaled embeddings": scale_fault("model.embed_tokens.embed_scale", 35**0.5)}),
    "xglm_past_its_length": dict(
        about="xglm: 24 positions, which prompt and continuation leave behind, as the reference's "
              "table grows",
        config=xglm(max_position_embeddings=24), context=64, gains=PRE,
        faults=table_faults(XGLM_TABLE) | sinusoid_faults(XGLM_TABLE, "halves", True)),
    "marian_decoder": dict(
        about="marian's decoder alone: sines, then cosines, norms after the branches, embeddings "
              "times the root of 30, swish; the table and the cross-attention that nothing "
              "attends to are in the file; tied",
        config=marian(), table=DECODER_TABLE,
        faults=HALVES
        | {"embeddings as they are": scale_fault("model.decoder.embed_scale", 1.0)}),
    "marian_odd_width": dict(
        about="marian's decoder alone: width 35, 18 sines and 17 cosines, embeddings as they are; "
              "neither table nor cross-attention in the file",
        config=marian(d_model=35, scale_embedding=False), table=DECODER_TABLE,
        gains={"embedding": 3.0}, rename=without("encoder_attn", "embed_positions"),
        faults=HALVES
        | {"scaled embeddings": scale_fault("model.decoder.embed_scale", 35**0.5)}),
    "marian_past_its_length": dict(
        about="marian's decoder alone: 24 positions in the configuration and the prompt past "
              "them; the reference's table has 64",
        config=marian(max_position_embeddings=24), reference={"max_position_embeddings": 64},
        context=64, table=DECODER_TABLE, rename=without("encoder_attn", "embed_positions"),
        faults=HALVES),
    "pegasus_decoder": dict(
        about="pegasus' decoder alone: sines, then cosines, norms before the branches and a last "
              "one, relu; no table in the file",
        config=seq2seq("PegasusForCausalLM", "pegasus", activation_function="relu",
                       static_position_embeddings=True, normalize_before=True,
                       normalize_embedding=False, add_final_layer_norm=True,
                       extra_pos_embeddings=1),
        gains=PRE, table=DECODER_TABLE, rename=without("encoder_attn", "embed_positions"),
        faults=HALVES
        | {"embeddings as they are": scale_fault("model.decoder.embed_scale", 1.0)}),
    "bart_decoder": dict(
        about="bart's decoder alone: learned positions from row 2, a norm on embeddings, norms "
              "after the branches; cross-attention that nothing attends to in the file",
        config=seq2seq("BartForCausalLM", "bart", scale_embedding=False, normalize_before=False,
                       add_final_layer_norm=False, normalize_embedding=True, pad_token_id=1,
                       bos_token_id=0, max_position_embeddings=64),
        faults=table_faults(DECODER_TABLE)
        | {"scaled embeddings": scale_fault("model.decoder.embed_tokens.embed_scale", 30**0.5)}),
    "mbart_decoder": dict(
        about="mbart's decoder alone: learned positions from row 2, a norm on embeddings, norms "
              "before the branches and a last one, embeddings times the root of 30",
        config=seq2seq("MBartForCausalLM", "mbart", normalize_before=True,
                       add_final_layer_norm=True, normalize_embedding=True, pad_token_id=1,
                       bos_token_id=0, max_position_embeddings=64),
        rename=without("encoder_attn"),
        faults=table_faults(DECODER_TABLE)
        | {"embeddings as they are": scale_fault("model.decoder.embed_tokens.embed_scale", 1.0)}),
    "xlm": dict(
        about="xlm: causal, interleaved sinusoids (stored, in float32), a norm on embeddings, "
              "norms after the branches, biased head; tied; epsilon 0.02",
        config=xlm(), table=XLM_TABLE, gains={"embedding": 3.0},
        faults=table_faults(XLM_TABLE) | sinusoid_faults(XLM_TABLE, "interleaved")
        | {"epsilon": with_small_epsilons}),
    "xlm_learned": dict(
        about="xlm: causal, learned positions, relu, head_dim 7, language embeddings off",
        config=xlm(sinusoidal_embeddings=False, gelu_activation=False, emb_dim=28, n_heads=4,
                   use_lang_emb=False),
        faults=table_faults(XLM_TABLE) | {"epsilon": with_small_epsilons}),
    "ctrl": dict(
        about="ctrl: sines, then cosines, embeddings times the root of 30, norms first with "
              "epsilon 1e-6 whatever the configuration says, but the last one with its 0.5; "
              "relu, biased head; tied",
        config=ctrl(), gains=PRE,
        faults=table_faults(CTRL_TABLE) | sinusoid_faults(CTRL_TABLE, "halves")
        | {"epsilon": with_small_epsilons,
           "one epsilon": setting_in_modules("LayerNorm", eps=0.5)}),
    "ctrl_odd_width": dict(
        about="ctrl: width 35, 18 sines and 17 cosines",
        config=ctrl(n_embd=35, layer_norm_epsilon=1e-6), gains=PRE,
        faults=table_faults(CTRL_TABLE) | sinusoid_faults(CTRL_TABLE, "halves")),
    "t5_decoder": dict(
        about="t5's decoder alone: 32 buckets up to 128, the prompt longer; the first layer's "
              "table for all, scores not divided, relu, logits times the root of 1/30; tied (no "
              "key says so); epsilon 0.02",
        config=t5(vocab_size=48, d_ff=40), prompts={"": 150}, gains={"embedding": 7.0, "gain": 2.0},
        faults=bucket_faults("T5Attention", **{"divided scores": scaled_scores})),
    "t5_decoder_gated": dict(
        about="t5 v1.1's decoder alone: 11 buckets up to 23, gated tanh gelu, its own head, logits "
              "as they are",
        config=t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False,
                  relative_attention_num_buckets=11, relative_attention_max_distance=23),
        faults=bucket_faults("T5Attention", **{"divided scores": scaled_scores})),
    "umt5_decoder": dict(
        about="umt5's decoder alone: a table in each layer, 12 buckets up to 30, gated tanh gelu, "
              "its own head",
        config=t5("umt5", feed_forward_proj="gated-gelu", tie_word_embeddings=False,
                  relative_attention_num_buckets=12, relative_attention_max_distance=30),
        faults=bucket_faults("UMT5Attention", **{"one table": one_table})),
    "umt5_decoder_tied": dict(
        about="umt5's decoder alone: tied, so that logits are times the root of 1/30; two layers, "
              "relu",
        config=t5("umt5", feed_forward_proj="relu", tie_word_embeddings=True,
                  num_layers=2, num_decoder_layers=2, relative_attention_num_buckets=8,
                  relative_attention_max_distance=20),
        gains={"embedding": 7.0, "gain": 2.0},
        faults=bucket_faults("UMT5Attention", **{"one table": one_table})),
    "bert_relative_key": dict(
        about="bert as a decoder: a table of distances (query - key) in each layer against "
              "queries, divided with the scores; absolute positions in the file and not added",
        config=bert(), version="4.47.1",
        faults={"table one row off": each_table("distance_embedding.weight",
                                                lambda x: x.roll(1, 0)),
                "other direction": each_table("distance_embedding.weight", lambda x: x.flip(0)),
                "against keys too": relative_kind("relative_key_query"),
                "absolute too": with_absolute, "epsilon": with_small_epsilons}),
    "bert_relative_key_query": dict(
        about="bert as a decoder: the table of distances against queries and keys",
        config=bert(position_embedding_type="relative_key_query", hidden_size=28,
                    num_attention_heads=4), version="4.47.1",
        faults={"table one row off": each_table("distance_embedding.weight",
                                                lambda x: x.roll(1, 0)),
                "other direction": each_table("distance_embedding.weight", lambda x: x.flip(0)),
                "not against keys": relative_kind("relative_key"),
                "absolute too": with_absolute, "epsilon": with_small_epsilons}),
    "bert_decoder": dict(
        about="bert as a decoder: learned positions and the row of token type 0, norms after the "
              "branches, a transformed and biased head; tied",
        config=bert(position_embedding_type="absolute"), version="4.47.1",
        faults=table_faults(BERT_TABLE)
        | {"no token type": each_table("token_type_embeddings.weight", torch.zeros_like),
           "epsilon": with_small_epsilons}),
    "transformer_relative": dict(
        about="a decoder with Shaw's tables for keys and values, clipped at 6, shorter than the "
              "prompt; norms first, relu, a biased head of its own",
        config=plain(), faults=shaw_faults(**{
            "no values' table": each_table(VALUES, torch.zeros_like),
            "clipped at 5": nearer_clip((KEYS, VALUES)),
            "epsilon": with_small_epsilons})),
    "transformer_relative_not_clipped": dict(
        about="a decoder with Shaw's tables for keys and values, a row for each of 64 distances "
              "to either side; norms after the branches; tied",
        config=plain(max_relative_positions=0, pre_norm=False, tie_word_embeddings=True),
        faults=shaw_faults(**{
            "no values' table": each_table(VALUES, torch.zeros_like),
            "epsilon": with_small_epsilons})),
    "transformer_relative_keys": dict(
        about="a decoder with Shaw's table for keys alone, clipped at 9; head_dim 7, embeddings "
              "as they are",
        config=plain(relative_position_values=False, max_relative_positions=9, hidden_size=28,
                     num_attention_heads=4, scale_embedding=False),
        faults=shaw_faults(**{"clipped at 8": nearer_clip(KEYS),
                              "epsilon": with_small_epsilons})),
    "transformer_interleaved": dict(
        about="the original Transformer's decoder alone: interleaved sinusoids, embeddings times "
              "the root of 30, norms after the branches; tied",
        config=sinusoidal_plain(sinusoid_layout="interleaved", pre_norm=False,
                                tie_word_embeddings=True),
        faults={"table one row off": plain_sinusoid_fault("interleaved", start=1),
                "another layout": plain_sinusoid_fault("halves"),
                "another step": plain_sinusoid_fault("interleaved", planes=14),
                "base 1.1": plain_sinusoid_fault("interleaved", base=11000.0),
                "epsilon": with_small_epsilons}),
    "transformer_halves": dict(
        about="a decoder with 18 sines, then 17 cosines, norms first, a biased head of its own; "
              "the prompt and its continuation past max_position_embeddings (24)",
        config=sinusoidal_plain(sinusoid_layout="halves", hidden_size=35,
                                max_position_embeddings=24), context=64,
        faults={"table one row off": plain_sinusoid_fault("halves", start=1),
                "another layout": plain_sinusoid_fault("interleaved"),
                "another step": plain_sinusoid_fault("halves", planes=16.5),
                "base 1.1": plain_sinusoid_fault("halves", base=11000.0),
                "epsilon": with_small_epsilons}),
    "smollm3_no_positions": dict(
        about="smollm3: no layer rotates, so that nothing but the mask knows of positions",
        config=gated("SmolLM3ForCausalLM", "smollm3", no_rope_layers=[0, 0],
                     intermediate_size=32, pad_token_id=0),
        faults={"all rotate": rotating}),
}


# --------------------------------------------------------------------------------------------------


def record(folder, model, case, rng, prompt, suffix, save):
    """Writes logits.npy and expected.json; False when some margin is too small for a fair test."""
    judge = copy.deepcopy(model).double() if isinstance(model, PlainDecoder) else model
    tokens = [int(x) for x in rng.integers(3, model.config.vocab_size, prompt)]
    following, lead = greedy(judge, tokens)
    logits = logits_of(judge, tokens)
    if len(set(following)) < 4 or lead < 20 * TOLERANCE * spread(logits):
        return False
    save()
    found = {}
    for name, fault in case["faults"].items():
        wrong = copy.deepcopy(judge)
        fault(wrong)
        found[name] = float(np.abs(logits_of(wrong, tokens) - logits).max()) / spread(logits)
    # A reference in float64 has its float32 twin to be compared with.
    twin = logits_of(model, tokens) if judge is not model else logits_in_double(model, tokens)
    more = {"context": case["context"]} if "context" in case else {}
    return keep(folder, case["about"], "folder", tokens, logits, twin, following, lead, found,
                suffix=suffix, **more)


def make_folder(name):
    case = CASES[name]
    config, reference = case["config"], case.get("reference", {})

    def make(folder, rng):
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        ends = {k: config[k] for k in ("bos_token_id", "eos_token_id") if k in config}
        (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
        model = reading(folder, reference)
        fixed = case.get("table")
        scatter(model, rng, fixed, **case.get("gains", {}))
        with torch.no_grad():
            for tensor, x in model.named_parameters():
                if tensor != fixed:
                    x.copy_(x.half().float())

        def save():
            plainly = isinstance(model, (BucketedDecoder, PlainDecoder))
            state = model.tensors() if plainly else checkpoint(model)
            state = {n: x.float() if n == fixed else x.half() for n, x in state.items()}
            tidy(folder, case.get("rename", dict)(state))
            read = reading(folder, reference)
            if plainly:
                read.read({n: x.float() for n, x in load_file(
                    folder / "model.safetensors").items()})
            else:
                dtype = {"dtype" if VERSION_5 else "torch_dtype": torch.float32}
                weights = type(model).from_pretrained(
                    folder, attn_implementation="eager", **dtype, **reference).state_dict()
                missing, unexpected = read.load_state_dict(weights, strict=False)
                assert not missing and not unexpected
            tokens = list(range(3, 20))
            assert np.array_equal(logits_of(read, tokens), logits_of(model, tokens))

        prompts = case.get("prompts", {"": PROMPT})
        return all(record(folder, model, case, rng, prompt, suffix, save)
                   for suffix, prompt in prompts.items())

    kept = HERE / name
    attempt(name, make, kept if kept.exists() else HERE / "pending" / name, 200)


if __name__ == "__main__":
    make_named(CASES, sys.argv[1:], make_folder)
