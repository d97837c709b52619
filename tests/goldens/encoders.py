#!/usr/bin/env python3
"""Makes the goldens of encoders: hidden states, pooled outputs and the logits of heads.

    encoders.py [NAME...]          all that this version of transformers can make, or those named

The reference is transformers 5.24.0, eager attention, float32, each input alone and without
padding, under the conditions of make.py, except that

* `bert_encoder_relative_*` need transformers 4.47.1, which still has relative keys;
* no library has jina-bert-v2's class. JinaBert below is written from arXiv:2310.19923 and
  arXiv:2108.12409 and from public readers of its checkpoints, whose names its tensors have;
* pooling, dense layers and norms of sentence-transformers are `sentence`, from that package's
  documentation.

README.md says what `expected.json` holds. Folders go where those of families.py go.
"""

import copy
import json
import math
import re
import sys
import types

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Block
from safetensors.torch import load_file
from transformers import AutoConfig

from decoders import VERSION_5, bucket_faults, each_table, setting_in_modules
from families import ABSENT, Doubles, checkpoint, config_of, make_named
from make import HERE, TOLERANCE, attempt, one_line_lists, spread, tidy

FOLDER_LIMIT = 100_000  # bytes


# --------------------------------------------------------------------------------------------------
# Reference models


class JinaBert(torch.nn.Module):
    """BERT with symmetric ALiBi and a gated feed-forward branch, in either layout.

    `code` is that of jina-embeddings-v2-base-code: norms on whole q and k, a second norm after
    attention's, and rows of the wide matrix in the other order.
    """

    base_model_prefix = "none"

    def __init__(self, config):
        super().__init__()
        self.config = types.SimpleNamespace(**config)
        self.code = config["architectures"] == ["JinaBertForMaskedLM"]
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.slopes = torch.tensor(alibi_slopes(config["num_attention_heads"]))

        def norm():
            return torch.nn.LayerNorm(width, config["layer_norm_eps"])

        def linear(inputs=width, outputs=width, bias=True):
            return torch.nn.Linear(inputs, outputs, bias)

        def group(**modules):
            return torch.nn.ModuleDict(modules)

        self.embeddings = group(
            word_embeddings=torch.nn.Embedding(config["vocab_size"], width),
            token_type_embeddings=torch.nn.Embedding(config["type_vocab_size"], width),
            LayerNorm=norm())
        layers = []
        for _ in range(config["num_hidden_layers"]):
            own = group(query=linear(), key=linear(), value=linear())
            attention = group(self=own, output=group(dense=linear(), LayerNorm=norm()))
            if self.code:
                own.update(dict(layer_norm_q=norm(), layer_norm_k=norm()))
                layers.append(group(attention=attention, layer_norm_1=norm(), mlp=group(
                    up_gated_layer=linear(width, 2 * inner, False),
                    down_layer=linear(inner, width)), layer_norm_2=norm()))
            else:
                layers.append(group(attention=attention, mlp=group(
                    gated_layers=linear(width, 2 * inner, False), wo=linear(inner, width),
                    layernorm=norm())))
        self.encoder = group(layer=torch.nn.ModuleList(layers))
        self.pooler = group(dense=linear())

    def attention(self, at, x):
        own, output = at["self"], at["output"]
        q, k, v = own["query"](x), own["key"](x), own["value"](x)
        if self.code:
            q, k = own["layer_norm_q"](q), own["layer_norm_k"](k)
        heads, length = self.config.num_attention_heads, len(x)
        q, k, v = (y.view(length, heads, -1).transpose(0, 1) for y in (q, k, v))
        distances = (torch.arange(length) - torch.arange(length)[:, None]).abs()
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        scores = scores - self.slopes.to(x)[:, None, None] * distances
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1)
        return output["LayerNorm"](output["dense"](mixed) + x)

    def layer(self, at, x):
        y, mlp = self.attention(at["attention"], x), at["mlp"]
        gelu = torch.nn.functional.gelu
        if self.code:
            x = at["layer_norm_1"](x + y)
            up, gate = mlp["up_gated_layer"](x).chunk(2, -1)
            return at["layer_norm_2"](x + mlp["down_layer"](up * gelu(gate)))
        gate, up = mlp["gated_layers"](y).chunk(2, -1)
        return mlp["layernorm"](y + mlp["wo"](gelu(gate) * up))

    def forward(self, tokens, attention_mask, token_type_ids=None):
        kinds = torch.zeros_like(tokens) if token_type_ids is None else token_type_ids
        table = self.embeddings
        x = table["LayerNorm"](table["word_embeddings"](tokens[0])
                               + table["token_type_embeddings"](kinds[0]))
        for at in self.encoder["layer"]:
            x = self.layer(at, x)
        pooled = self.pooler["dense"](x[:1]).tanh()
        return types.SimpleNamespace(last_hidden_state=x[None], pooler_output=pooled)


def alibi_slopes(heads):
    whole = 2 ** math.floor(math.log2(heads))
    extra = [2.0 ** (-8 * (i + 0.5) / whole) for i in range(heads - whole)]
    return [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)] + extra


def reading(folder, reference={}):
    """A model of the configuration in `folder`, without its weights."""
    raw = json.loads((folder / "config.json").read_text())
    if raw["architectures"][0].startswith("Jina"):
        return JinaBert(raw).eval()
    config = (AutoConfig.for_model(**reference) if "model_type" in reference else
              AutoConfig.from_pretrained(folder))
    config._attn_implementation = "eager"
    return getattr(transformers, raw["architectures"][0])(config).eval()


@torch.no_grad()
def sentence(folder, hidden):
    """The vector of a sentence whose last hidden states are `hidden`, as sentence-transformers."""
    for module in json.loads((folder / "modules.json").read_text())[1:]:
        path, kind = folder / module["path"], module["type"].rpartition(".")[2]
        config = path / "config.json"
        config = json.loads(config.read_text()) if config.exists() else {}
        if kind == "Pooling":
            places = torch.arange(1, len(hidden) + 1)[:, None].to(hidden)
            parts = {"cls_token": hidden[0], "max_tokens": hidden.max(0).values,
                     "mean_tokens": hidden.mean(0),
                     "mean_sqrt_len_tokens": hidden.sum(0) / math.sqrt(len(hidden)),
                     "weightedmean_tokens": (hidden * places).sum(0) / places.sum(),
                     "lasttoken": hidden[-1]}
            x = torch.cat([part for mode, part in parts.items()
                           if config.get(f"pooling_mode_{mode}")])
        elif kind == "Dense":
            state = {n: y.to(hidden) for n, y in load_file(path / "model.safetensors").items()}
            x = torch.nn.functional.linear(x, state["linear.weight"], state.get("linear.bias"))
            x = {"Tanh": torch.tanh, "Identity": lambda y: y}[
                config["activation_function"].rpartition(".")[2]](x)
        elif kind == "Normalize":
            x = x / x.norm()
    return x


@torch.no_grad()
def outputs(model, given):
    """Arrays of [rows, columns]: `hidden`, `pooled` and `logits`, where the model has them."""
    tokens = torch.tensor([given["tokens"]])
    inputs = {"attention_mask": torch.ones_like(tokens)}
    if "token_types" in given:
        inputs["token_type_ids"] = torch.tensor([given["token_types"]])
    base = getattr(model, model.base_model_prefix, model)
    below = base(tokens, **inputs)
    found = {"hidden": below.last_hidden_state}
    if getattr(below, "pooler_output", None) is not None:
        found["pooled"] = below.pooler_output
    if base is not model:
        found["logits"] = model(tokens, **inputs).logits
    if hasattr(model, "sentence_folder"):
        found["sentence"] = sentence(model.sentence_folder, below.last_hidden_state[0])
    return {kind: x.reshape(-1, x.shape[-1]).numpy() for kind, x in found.items()}


def in_double(find):
    """As `find`, of the same model in float64, its frequencies still those of float32."""

    def found(model, given):
        model = copy.deepcopy(model).double()
        torch.set_default_dtype(torch.float64)
        try:
            with Doubles():
                return find(model, given)
        finally:
            torch.set_default_dtype(torch.float32)

    return found


QUERIES = (".query.", ".key.", "q_lin", "k_lin", "query_proj", "key_proj", "Wqkv")


def scatter(model, rng, gain=1.3):
    """Random weights as in make.py, of values that half precision has."""
    for name, parameter in model.named_parameters():
        x = rng.standard_normal(parameter.shape)
        if name.endswith("bias"):
            x *= 0.3
        elif x.ndim == 1:
            x = 1 + 0.25 * x
        elif "distance_embedding" in name:
            x *= 0.7
        elif "relative_attention_bias" in name:
            x *= 1.5
        else:
            factor = 1.7 if any(part in name for part in QUERIES) else gain
            x *= factor / math.sqrt(x[0].size)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(x).half().float())


# --------------------------------------------------------------------------------------------------
# Faults: functions that put a model a little wrong


def rolled(ending):
    return each_table(ending, lambda x: x.roll(-1, 0))


def emptied(ending):
    return each_table(ending, torch.zeros_like)


def with_small_epsilons(model):
    for module in model.modules():
        for key in ("eps", "variance_epsilon"):
            if getattr(module, key, 0) > 1e-3:
                setattr(module, key, 1e-5)


def setting(**values):
    """A fault that sets attributes of all modules that have them."""

    def fault(model):
        hit = False
        for module in model.modules():
            for key, value in values.items():
                if hasattr(module, key):
                    setattr(module, key, value)
                    hit = True
        assert hit, values

    return fault


def turned(model):
    """Frequencies raised by a tenth."""
    for name, x in model.named_buffers():
        if name.endswith("inv_freq"):
            x.mul_(1.1)


def one_theta(model):
    rotary = model.get_submodule(model.base_model_prefix).rotary_emb
    rotary.sliding_attention_inv_freq.copy_(rotary.full_attention_inv_freq)


def wider_window(model):
    model.config.local_attention += 2


def spans(buckets):
    """DeBERTa's distances as if it had other buckets; the rows' middle stays the same."""

    def fault(model):
        model.get_submodule(model.base_model_prefix).encoder.position_buckets = buckets

    return fault


def steeper(model):
    model.slopes = model.slopes * 1.1


# --------------------------------------------------------------------------------------------------
# Families


LABELS = {"id2label": {"0": "grief", "1": "calm", "2": "joy"},
          "label2id": {"grief": 0, "calm": 1, "joy": 2}}


def bert(architecture, family="bert", **keys):
    return config_of(architecture, family, **{
        "vocab_size": 61, "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 5, "hidden_act": "gelu", "max_position_embeddings": 40,
        "type_vocab_size": 2, "layer_norm_eps": 0.02, "pad_token_id": 0,
        "bos_token_id": ABSENT, "eos_token_id": ABSENT} | keys)


def legacy_names(state):
    """As the first BERT checkpoints have them, with the head that nothing here reads."""
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma")
               .replace("LayerNorm.bias", "LayerNorm.beta"): x for name, x in state.items()}
    width = len(state["bert.embeddings.LayerNorm.weight"])
    return old | {"cls.seq_relationship.weight": torch.ones(2, width).half(),
                  "cls.seq_relationship.bias": torch.ones(2).half(),
                  "bert.embeddings.position_ids": torch.arange(40)[None],
                  "bert.pooler.dense.weight": torch.ones(width, width).half(),
                  "bert.pooler.dense.bias": torch.ones(width).half()}


def roberta(architecture, family="roberta", **keys):
    return bert(architecture, family, **{
        "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "position_embedding_type": "absolute"} | keys)


def distilbert(architecture, **keys):
    return config_of(architecture, "distilbert", **{
        "vocab_size": 61, "dim": 30, "hidden_dim": 44, "n_layers": 2, "n_heads": 5,
        "activation": "gelu", "max_position_embeddings": 40, "sinusoidal_pos_embds": False,
        "tie_weights_": True, "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
        "bos_token_id": ABSENT, "eos_token_id": ABSENT} | keys)


def modernbert(architecture, **keys):
    return config_of(architecture, "modernbert", **{
        "vocab_size": 61, "hidden_size": 30, "intermediate_size": 36, "num_hidden_layers": 4,
        "num_attention_heads": 3, "hidden_activation": "gelu", "max_position_embeddings": 64,
        "global_attn_every_n_layers": 3, "global_rope_theta": 1000.0, "local_rope_theta": 100.0,
        "local_attention": 12, "norm_eps": 0.02, "norm_bias": False, "attention_bias": False,
        "mlp_bias": False, "decoder_bias": True, "classifier_bias": False,
        "classifier_activation": "gelu", "classifier_pooling": "cls", "pad_token_id": 0,
        "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2} | keys)


def deberta(architecture, **keys):
    return config_of(architecture, "deberta-v2", **{
        "vocab_size": 61, "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 3, "hidden_act": "gelu", "max_position_embeddings": 40,
        "type_vocab_size": 0, "layer_norm_eps": 0.02, "relative_attention": True,
        "max_relative_positions": -1, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False,
        "pooler_hidden_act": "gelu", "pooler_hidden_size": 30, "pad_token_id": 0,
        "bos_token_id": ABSENT, "eos_token_id": ABSENT} | keys)


def nomic(architecture="NomicBertModel", **keys):
    return config_of(architecture, "nomic_bert", **{
        "vocab_size": 61, "hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2,
        "num_attention_heads": 3, "hidden_act": "silu", "max_position_embeddings": 64,
        "type_vocab_size": 2, "layer_norm_eps": 0.02, "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "bos_token_id": ABSENT, "eos_token_id": ABSENT} | keys)


# The keys of the code that came with the checkpoints, after GPT-2's.
NOMIC_REMOTE = config_of(
    "NomicBertModel", "nomic_bert", vocab_size=61, n_embd=30, n_inner=44, n_layer=2, n_head=3,
    n_positions=64, max_trained_positions=64, activation_function="swiglu", causal=False,
    layer_norm_epsilon=0.02, prenorm=False, parallel_block=False, qkv_proj_bias=False,
    mlp_fc1_bias=False, mlp_fc2_bias=False, use_rms_norm=False, rotary_emb_fraction=1.0,
    rotary_emb_base=1000, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
    rotary_scaling_factor=None, scale_attn_weights=True, type_vocab_size=2, pad_token_id=0,
    bos_token_id=ABSENT, eos_token_id=ABSENT)


def jina(architecture="JinaBertModel", **keys):
    return bert(architecture, **{
        "num_attention_heads": 6, "feed_forward_type": "geglu", "emb_pooler": "mean",
        "position_embedding_type": "alibi", "max_position_embeddings": 64} | keys)


def nomic_names(state):
    """The original names, of which the reference has its own."""
    def renamed(name):
        for new, old in [("layers.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"),
                         ("self_attn.o_proj", "attn.out_proj"), ("up_proj", "fc11"),
                         ("gate_proj", "fc12"), ("down_proj", "fc2"),
                         ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2")]:
            if old not in name:
                name = name.replace(new, old)
        return name

    old = {renamed(name): x for name, x in state.items()}
    for layer in range(2):
        at = next(n.partition("encoder.")[0] for n in old if "encoder." in n)
        at += f"encoder.layers.{layer}."
        if at + "self_attn.q_proj.weight" in old:
            old[at + "attn.Wqkv.weight"] = torch.cat([
                old.pop(f"{at}self_attn.{part}_proj.weight") for part in "qkv"])
    return old


def t5(architecture="T5EncoderModel", **keys):
    return config_of(architecture, "t5", **{
        "vocab_size": 61, "d_model": 30, "d_kv": 8, "d_ff": 44, "num_layers": 2, "num_heads": 3,
        "relative_attention_num_buckets": 12, "relative_attention_max_distance": 128,
        "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 0.02, "is_encoder_decoder": True,
        "tie_word_embeddings": False, "n_positions": 512, "bos_token_id": ABSENT,
        "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0} | keys)


POOLING = {"cls_token": False, "mean_tokens": False, "max_tokens": False,
           "mean_sqrt_len_tokens": False, "weightedmean_tokens": False, "lasttoken": False}


def sentences(about, modes, dense=None, normalize=False, keys=POOLING, **more):
    """A folder of sentence-transformers; `dense` is a layer's rows and activation."""
    return dict(
        about="sentence-transformers: " + about, config=bert("BertModel"), inputs=WITHIN_40,
        faults=BERT, sentence=dict(keys={k: k in modes for k in keys} | dict.fromkeys(modes, True),
                                   dense=dense, normalize=normalize)) | more


def write_modules(folder, settings, width, rng):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    path = folder / "1_Pooling"
    path.mkdir()
    keys = {f"pooling_mode_{mode}": on for mode, on in settings["keys"].items()}
    (path / "config.json").write_text(
        json.dumps({"word_embedding_dimension": width} | keys, indent=2) + "\n")
    if settings["dense"]:
        rows, activation = settings["dense"]
        modules.append((f"{len(modules)}_Dense", "Dense"))
        path = folder / modules[-1][0]
        path.mkdir()
        width *= sum(settings["keys"].values())
        x = rng.standard_normal((rows, width)) / math.sqrt(width)
        tidy(path, {"linear.weight": torch.from_numpy(x).half(),
                    "linear.bias": torch.from_numpy(0.3 * rng.standard_normal(rows)).half()})
        (path / "config.json").write_text(json.dumps({
            "in_features": width, "out_features": rows, "bias": True,
            "activation_function": "torch.nn.modules." + activation}, indent=2) + "\n")
    if settings["normalize"]:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    (folder / "modules.json").write_text(json.dumps(
        [{"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind}
         for i, (path, kind) in enumerate(modules)], indent=2) + "\n")
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 32, "do_lower_case": False}, indent=2) + "\n")


def without_base_prefix(prefix):
    def rename(state):
        return {name.removeprefix(prefix): x for name, x in state.items()}

    return rename


def with_head_copies(state):
    """As older files have the head: its tied weight and its bias a second time."""
    return state | {
        "lm_head.decoder.weight": state["roberta.embeddings.word_embeddings.weight"].clone(),
        "lm_head.decoder.bias": state["lm_head.bias"].clone(),
        "roberta.embeddings.position_ids": torch.arange(42)[None]}


ABSOLUTE = {"positions one row off": rolled("position_embeddings.weight"),
            "no positions": emptied("position_embeddings.weight"),
            "epsilon": with_small_epsilons}
KINDS = {"token types one row off": rolled("token_type_embeddings.weight")}
BERT = ABSOLUTE | KINDS
WITHIN_40 = [(1,), (23, 17), (11,), (5, 9)]  # lengths of sentences, or of pairs of them
SINGLE_40 = [(1,), (40,), (11,), (5,)]
RELATIVE = {"distances one row off": rolled("distance_embedding.weight"),
            "other direction": each_table("distance_embedding.weight", lambda x: x.flip(0)),
            "epsilon": with_small_epsilons} | KINDS
MODERN = {"window + 1": wider_window, "one theta": one_theta, "frequencies 1.1": turned,
          "epsilon": with_small_epsilons}
DEBERTA = {"distances one row off": rolled("rel_embeddings.weight"),
           "other direction": each_table("rel_embeddings.weight", lambda x: x.flip(0)),
           "epsilon": with_small_epsilons}
BUCKETS = {"other buckets": spans(10), "no buckets": spans(-1)}
ROTARY = {"frequencies 1.1": turned, "epsilon": with_small_epsilons} | KINDS
T5_ENCODER = bucket_faults("T5Attention", **{
    "buckets of one side": setting_in_modules("T5Attention", is_decoder=True)})
del T5_ENCODER["buckets of both sides"]  # its own
JINA = {"slopes 1.1": steeper, "epsilon": with_small_epsilons} | KINDS

CASES = {
    "bert": dict(
        about="bert: the encoder and its pooler, names without `bert.`; an input of one token, one "
              "of all 40 positions; epsilon 0.02",
        config=bert("BertModel"), inputs=WITHIN_40, faults=BERT),
    "bert_fill": dict(
        about="bert: a head that fills masks, tied to the embeddings",
        config=bert("BertForMaskedLM"), inputs=WITHIN_40, faults=BERT),
    "bert_fill_legacy_names": dict(
        about="bert: LayerNorm.gamma and .beta, a pooler and a head for the next sentence that "
              "nothing reads, as in the first checkpoints; gelu_new, three layers",
        config=bert("BertForMaskedLM", hidden_act="gelu_new", num_hidden_layers=3),
        inputs=WITHIN_40, rename=legacy_names, faults=BERT),
    "bert_fill_no_prefix": dict(
        about="bert: names without `bert.` beside a head that fills masks",
        config=bert("BertForMaskedLM"), inputs=WITHIN_40, rename=without_base_prefix("bert."),
        faults=BERT),
    "bert_classify": dict(
        about="bert: three labels for a sentence, from the pooler",
        config=bert("BertForSequenceClassification", hidden_size=28, num_attention_heads=4)
        | LABELS, inputs=WITHIN_40, faults=BERT),
    "bert_tag": dict(
        about="bert: three labels for each token; relu",
        config=bert("BertForTokenClassification", hidden_act="relu") | LABELS,
        inputs=WITHIN_40, faults=BERT),
    "bert_encoder_relative_key": dict(
        about="bert: a table of distances (query - key) in each layer against queries, divided "
              "with the scores; absolute positions in the file and not added",
        config=bert("BertForMaskedLM", position_embedding_type="relative_key"),
        inputs=WITHIN_40, version="4.47.1", faults=RELATIVE),
    "bert_encoder_relative_key_query": dict(
        about="bert: the table of distances against queries and keys",
        config=bert("BertForSequenceClassification", hidden_size=28, num_attention_heads=4,
                    position_embedding_type="relative_key_query") | LABELS,
        inputs=WITHIN_40, version="4.47.1", faults=RELATIVE),
    "roberta_fill": dict(
        about="roberta: positions from the row after the padding id's, a head with a bias of its "
              "own",
        config=roberta("RobertaForMaskedLM"), inputs=SINGLE_40, faults=ABSOLUTE),
    "roberta_classify": dict(
        about="roberta: three labels from the first token through a dense layer and tanh",
        config=roberta("RobertaForSequenceClassification") | LABELS, inputs=SINGLE_40,
        faults=ABSOLUTE),
    "roberta_padding_inside": dict(
        about="roberta: padding ids inside the input, which is all attended to: they have the "
              "row of the padding id and are not counted in the positions after them",
        config=roberta("RobertaModel"), inputs=SINGLE_40, padding_inside=True, faults=ABSOLUTE),
    "xlm_roberta_fill": dict(
        about="xlm-roberta: as roberta; the head's weight and bias a second time in the file",
        config=roberta("XLMRobertaForMaskedLM", "xlm-roberta", hidden_size=28,
                       num_attention_heads=4),
        inputs=SINGLE_40, rename=with_head_copies, faults=ABSOLUTE),
    "camembert_tag": dict(
        about="camembert: as roberta; three labels for each token",
        config=roberta("CamembertForTokenClassification", "camembert", num_hidden_layers=3)
        | LABELS, inputs=SINGLE_40, faults=ABSOLUTE),
    "distilbert_fill": dict(
        about="distilbert: no token types, epsilon 1e-12 that no key mentions; tied",
        config=distilbert("DistilBertForMaskedLM"), inputs=SINGLE_40,
        faults={k: v for k, v in ABSOLUTE.items() if k != "epsilon"}),
    "distilbert_classify": dict(
        about="distilbert: three labels from the first token through a dense layer and relu",
        config=distilbert("DistilBertForSequenceClassification", activation="relu") | LABELS,
        inputs=SINGLE_40, faults={k: v for k, v in ABSOLUTE.items() if k != "epsilon"}),
    "electra_tag": dict(
        about="electra's discriminator: embeddings of 20 projected to 30; three labels for each "
              "token",
        config=bert("ElectraForTokenClassification", "electra", embedding_size=20)
        | LABELS, inputs=WITHIN_40, faults=BERT),
    "modernbert_fill": dict(
        about="modernbert: the first and fourth of four layers see all with base 1000, the others "
              "six tokens to either side with base 100; no norm before the first attention; "
              "spelled as in transformers 4",
        config=modernbert("ModernBertForMaskedLM"), inputs=SINGLE_40, faults=MODERN,
        seed="modernbert"),
    "modernbert_spelling_5": dict(
        about="modernbert: the model of modernbert_fill, spelled as in transformers 5",
        config=modernbert(
            "ModernBertForMaskedLM", global_rope_theta=ABSENT, local_rope_theta=ABSENT,
            global_attn_every_n_layers=ABSENT, torch_dtype=ABSENT, dtype="float16",
            layer_types=["full_attention", "sliding_attention", "sliding_attention",
                         "full_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
        inputs=SINGLE_40, faults=MODERN, seed="modernbert"),
    "modernbert_classify_cls": dict(
        about="modernbert: three labels from the first token; biases everywhere",
        config=modernbert("ModernBertForSequenceClassification", norm_bias=True,
                          attention_bias=True, mlp_bias=True, classifier_bias=True) | LABELS,
        inputs=SINGLE_40, faults=MODERN),
    "modernbert_classify_mean": dict(
        about="modernbert: three labels from the mean of all tokens; a window of 7, which is 3 "
              "to either side",
        config=modernbert("ModernBertForSequenceClassification", classifier_pooling="mean",
                          local_attention=7) | LABELS,
        inputs=SINGLE_40, faults=MODERN),
    "deberta_v3_fill": dict(
        about="deberta v3: distances in eight buckets to either side (exact to 4, then "
              "logarithmic to 40), a norm on their table, projected by q's and k's own matrices; "
              "lm_predictions, tied (legacy false)",
        config=deberta("DebertaV2ForMaskedLM", legacy=False), inputs=SINGLE_40,
        faults=DEBERTA | BUCKETS),
    "deberta_v3_fill_legacy": dict(
        about="deberta v3: the head of cls.predictions, tied (legacy, as by default)",
        config=deberta("DebertaV2ForMaskedLM", hidden_size=28, num_attention_heads=4),
        inputs=SINGLE_40, faults=DEBERTA | BUCKETS),
    "deberta_v3_classify": dict(
        about="deberta v3: three labels from the first token through a dense layer and gelu; "
              "max_relative_positions 24, shorter than the input",
        config=deberta("DebertaV2ForSequenceClassification", max_relative_positions=24,
                       pos_att_type=["p2c", "c2p"]) | LABELS,
        inputs=SINGLE_40, faults=DEBERTA | BUCKETS),
    "deberta_v2_tag": dict(
        about="deberta v2: a convolution over three tokens beside the first layer, projections of "
              "their own for distances; three labels for each token",
        config=deberta("DebertaV2ForTokenClassification", conv_kernel_size=3, conv_act="gelu",
                       share_att_key=False) | LABELS,
        inputs=SINGLE_40, faults=DEBERTA | BUCKETS),
    "deberta_v2_absolute": dict(
        about="deberta v2: positions and token types on embeddings, distances against queries "
              "only, clipped at 12, no buckets, no norm on their table",
        config=deberta("DebertaV2Model", position_biased_input=True, type_vocab_size=2,
                       position_buckets=-1, max_relative_positions=12, norm_rel_ebd="none",
                       share_att_key=False, pos_att_type="c2p"),
        inputs=WITHIN_40, faults=DEBERTA | BERT),
    "nomic_bert": dict(
        about="nomic-bert: rotary (base 1000), swiglu, norms after the branches, no biases but the "
              "norms'; original names, keys as in transformers 5",
        config=nomic(), inputs=WITHIN_40, rename=nomic_names, faults=ROTARY, seed="nomic"),
    "nomic_bert_remote": dict(
        about="nomic-bert: the model of nomic_bert, its keys as in the code that came with the "
              "checkpoints",
        config=NOMIC_REMOTE, reference=nomic(), inputs=WITHIN_40, rename=nomic_names,
        faults=ROTARY, seed="nomic"),
    "nomic_bert_fill": dict(
        about="nomic-bert: a head that fills masks, tied to the embeddings, silu as in the blocks; "
              "names as transformers 5 has them",
        config=nomic(architecture="NomicBertForMaskedLM"), inputs=WITHIN_40, rename=nomic_names,
        faults=ROTARY),
    "nomic_bert_classify": dict(
        about="nomic-bert: three labels for a sentence, from the pooler",
        config=nomic(architecture="NomicBertForSequenceClassification") | LABELS,
        inputs=WITHIN_40, rename=nomic_names, faults=ROTARY),
    "t5_encoder": dict(
        about="t5: the encoder alone, as sentence-t5 has it; relu, a longer input than its last "
              "bucket begins at",
        config=t5(feed_forward_proj="relu", relative_attention_max_distance=23),
        inputs=SINGLE_40, faults=T5_ENCODER),
    "jina_bert": dict(
        about="jina-bert-v2: six heads of symmetric ALiBi, rows [gate, up] with gelu, norms after "
              "the branches; the reference is JinaBert in encoders.py",
        config=jina(), inputs=WITHIN_40, faults=JINA),
    "jina_bert_code": dict(
        about="jina-bert-v2 for code: norms on whole q and k, a second norm after attention's, "
              "rows [up, gate]; four heads; the reference is JinaBert in encoders.py",
        config=jina("JinaBertForMaskedLM", hidden_size=28, num_attention_heads=4),
        inputs=WITHIN_40, faults=JINA),
    "sentence_mean": sentences(
        "the mean of all tokens, normalised", ["mean_tokens"], normalize=True,
        keys=["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"]),
    "sentence_cls_dense": sentences(
        "the first token through a dense layer of 20 rows with tanh, normalised", ["cls_token"],
        dense=(20, "activation.Tanh"), normalize=True),
    "sentence_max": sentences("the largest of all tokens", ["max_tokens"]),
    "sentence_last": sentences("the last token, normalised", ["lasttoken"], normalize=True),
    "sentence_weighted": sentences("a mean weighted by places from 1", ["weightedmean_tokens"]),
    "sentence_two_modes": sentences(
        "the first token and the sum over the root of the length, one after the other, through a "
        "dense layer without an activation", ["mean_sqrt_len_tokens", "cls_token"],
        dense=(24, "linear.Identity")),
}


# --------------------------------------------------------------------------------------------------


def random_input(rng, vocabulary, lengths):
    given = {"tokens": [int(x) for x in rng.integers(3, vocabulary, sum(lengths))]}
    if len(lengths) > 1:
        given["token_types"] = [i for i, n in enumerate(lengths) for _ in range(n)]
    return given


def largest(arrays):
    """The range of all values of a kind."""
    return float(max(x.max() for x in arrays) - min(x.min() for x in arrays))


def record(folder, model, case, inputs, find=outputs, source="folder"):
    """Writes arrays and expected.json; False when some margin is too small for a fair test."""
    found = [find(model, given) for given in inputs]
    truth = [in_double(find)(model, given) for given in inputs]
    kinds = list(found[0])
    ranges = {kind: largest([x[kind] for x in found]) for kind in kinds}

    def moved(others, kind):
        """How far arrays of a kind are from those of the reference, in ranges."""
        return max(float(np.abs(a[kind] - b[kind]).max())
                   for a, b in zip(found, others)) / ranges[kind]

    noise = max(moved(truth, kind) for kind in kinds)
    faults = {}
    for name, fault in case["faults"].items():
        wrong = copy.deepcopy(model)
        fault(wrong)
        others = [find(wrong, given) for given in inputs]
        faults[name] = min(moved(others, kind) for kind in kinds)
    print(f"{folder.name}: noise {noise:.1e}, "
          + ", ".join(f"{kind} {x:.2f}" for kind, x in (ranges | faults).items()))
    if min(ranges.values()) < 0.5 or noise > TOLERANCE / 10:
        return False
    if min(faults.values()) < 100 * TOLERANCE:
        return False
    rows = []
    for i, (given, arrays) in enumerate(zip(inputs, found)):
        files = {kind: f"{kind}_{i}.npy" for kind in kinds}
        for kind, file in files.items():
            np.save(folder / file, arrays[kind].astype(np.float32))
        rows.append(given | files)
    expected = {"description": case["about"], "source": source, "inputs": rows,
                "ranges": {kind: round(x, 5) for kind, x in ranges.items()},
                "disturbance": round(min(faults.values()), 5)}
    (folder / "expected.json").write_text(one_line_lists(expected) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert size < FOLDER_LIMIT, f"{folder.name} has {size} bytes"
    return True


# --------------------------------------------------------------------------------------------------
# GGUF


def write_gguf(path, arch, state, keys):
    """A file of tensors under the `gguf` package's names; `keys` are calls of its writer."""
    layers = 1 + max(int(x) for name in state for x in re.findall(r"\.(\d+)\.", name))
    architecture = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(architecture, layers)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.parent.name)
    for method, value in keys.items():
        getattr(writer, method)(value)
    written = set()
    for name, x in state.items():
        found = name if name.startswith("blk.") else names.get_name(name, (".weight", ".bias"))
        assert found and found not in written, name
        written.add(found)
        half = x.ndim > 1 and not re.search("norm|position_embd|token_types", found)
        stored = np.ascontiguousarray(x.numpy(), np.float16 if half else np.float32)
        assert np.array_equal(stored.astype(np.float32), x.numpy()), name
        writer.add_tensor(found, stored, raw_dtype=Block.F16 if half else Block.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_keys(config, pooling, **more):
    return {
        "add_context_length": config["max_position_embeddings"],
        "add_vocab_size": config["vocab_size"], "add_embedding_length": config["hidden_size"],
        "add_feed_forward_length": config["intermediate_size"],
        "add_block_count": config["num_hidden_layers"],
        "add_head_count": config["num_attention_heads"],
        "add_layer_norm_eps": config["layer_norm_eps"], "add_causal_attention": False,
        "add_pooling_type": pooling, "add_token_type_count": config["type_vocab_size"]} | more


def t5_keys(config):
    """What the format says of a T5's encoder."""
    return {
        "add_context_length": 512, "add_vocab_size": config["vocab_size"],
        "add_embedding_length": config["d_model"], "add_feed_forward_length": config["d_ff"],
        "add_block_count": config["num_layers"], "add_head_count": config["num_heads"],
        "add_key_length": config["d_kv"], "add_value_length": config["d_kv"],
        "add_layer_norm_eps": config["layer_norm_epsilon"],
        "add_layer_norm_rms_eps": config["layer_norm_epsilon"],
        "add_relative_attn_buckets_count": config["relative_attention_num_buckets"]}


def without_first_rows(state):
    """As RoBERTa's positions go into the file."""
    name = "embeddings.position_embeddings.weight"
    return state | {name: state[name][2:]}


def split_matrix(state, matrix, halves):
    """`matrix` in two: by the name of each, which half of its rows it is."""
    parted = {}
    for name, x in state.items():
        if matrix in name:
            rows = x.chunk(2)
            parted |= {name.replace(matrix, part): rows[half] for part, half in halves.items()}
        else:
            parted[name] = x
    return parted


def split_gates(state):
    """Gate and up, which jina-bert-v2 has in one matrix, as the first converters wrote them."""
    return split_matrix(state, "gated_layers", {"gated_layers_w": 0, "gated_layers_v": 1})


def split_code_gates(state):
    """The same of a model for code, where the gate's rows are the later ones."""
    return split_matrix(state, "up_gated_layer", {"gated_layers_w": 1, "gated_layers_v": 0})


def pooled_outputs(pooling):
    """Outputs of what the format keeps: hidden states, and what its pooling type makes of them."""

    def find(model, given):
        hidden = outputs(model, given)["hidden"]
        vector = hidden.mean(0) if pooling == MEAN else hidden[0 if pooling == CLS else -1]
        return {"hidden": hidden, "sentence": vector[None]}

    return find


MEAN, CLS, LAST = gguf.PoolingType.MEAN, gguf.PoolingType.CLS, gguf.PoolingType.LAST
GGUFS = {
    "gguf_bert": dict(
        arch="bert", about="GGUF, bert: separate q, k and v; pooling type 2, the first token",
        config=bert("BertModel"), pooling=CLS, inputs=WITHIN_40, faults=BERT),
    "gguf_bert_of_roberta": dict(
        arch="bert", about="GGUF, bert: a roberta, whose positions start in row 0 here; pooling "
                           "type 3, the last token; one token type",
        config=roberta("RobertaModel"), pooling=LAST, inputs=SINGLE_40, rename=without_first_rows,
        keys={"add_context_length": 40}, faults=ABSOLUTE),
    "gguf_nomic_bert": dict(
        arch="nomic-bert", about="GGUF, nomic-bert: fused q, k and v, rotary (base 1000, by "
                                 "halves), swiglu; pooling type 1, the mean",
        config=nomic(), pooling=MEAN, inputs=WITHIN_40, rename=nomic_names,
        keys={"add_rope_freq_base": 1000.0}, faults=ROTARY),
    "gguf_jina_bert_v2": dict(
        arch="jina-bert-v2", about="GGUF, jina-bert-v2: six heads of symmetric ALiBi, which no key "
                                   "mentions; ffn_gate and ffn_up; erf gelu; pooling type 1",
        config=jina(), pooling=MEAN, inputs=WITHIN_40, rename=split_gates, faults=JINA,
        seed="gguf_jina"),
    "gguf_jina_bert_v2_code": dict(
        arch="jina-bert-v2", about="GGUF, jina-bert-v2 for code: norms on whole q and k, a second "
                                   "norm after attention's; ffn_gate and ffn_up; four heads",
        config=jina("JinaBertForMaskedLM", hidden_size=28, num_attention_heads=4), pooling=MEAN,
        inputs=WITHIN_40, rename=split_code_gates, faults=JINA),
    "gguf_t5_encoder": dict(
        arch="t5encoder", about="GGUF, t5encoder: 12 buckets up to 128, which no key mentions, and "
                                "a longer input; gated tanh gelu; no pooling type",
        config=t5(), pooling=MEAN, inputs=[(140,), (7,)], faults=T5_ENCODER, only_keys=t5_keys),
    "gguf_jina_bert_v2_fused": dict(
        arch="jina-bert-v2", about="GGUF, jina-bert-v2: the model of gguf_jina_bert_v2, ffn_up "
                                   "with the rows of the gate before its own, as converters "
                                   "write it since",
        config=jina(), pooling=MEAN, inputs=WITHIN_40, faults=JINA, seed="gguf_jina"),
}


def make_gguf(name):
    case = GGUFS[name]
    config = case["config"]

    def make(folder, rng):
        (folder / "config.json").write_text(json.dumps(config))
        model = reading(folder)
        (folder / "config.json").unlink()
        scatter(model, rng)
        inputs = [random_input(rng, config["vocab_size"], x) for x in case["inputs"]]
        state = case.get("rename", dict)(
            {n: x for n, x in tensors(model).items() if "pooler" not in n})
        path = folder / "model.gguf"
        keys = (case["only_keys"](config) if "only_keys" in case else
                gguf_keys(config, case["pooling"], **case.get("keys", {})))
        write_gguf(path, case["arch"], state, keys)
        return record(folder, model, case, inputs, pooled_outputs(case["pooling"]), path.name)

    attempt(case.get("seed", name), make, home(name), 50)


# --------------------------------------------------------------------------------------------------


def home(name):
    """The folder of a golden of this kind, or its place in `pending`."""
    kept = HERE / name / "expected.json"
    whole = kept.exists() and "inputs" in json.loads(kept.read_text())
    return kept.parent if whole else HERE / "pending" / name


def tensors(model):
    return ({n: x.clone() for n, x in model.state_dict().items()} if isinstance(model, JinaBert)
            else checkpoint(model))


def make_folder(name):
    case = CASES[name]
    config, reference = case["config"], case.get("reference", {})

    def make(folder, rng):
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        model = reading(folder, reference)
        scatter(model, rng, **case.get("gains", {}))
        inputs = [random_input(rng, config["vocab_size"], x) for x in case["inputs"]]
        if "padding_inside" in case:
            for given in inputs[1:]:
                given["tokens"][2::5] = [1] * len(given["tokens"][2::5])
        state = {n: x.half() for n, x in tensors(model).items()}
        tidy(folder, case.get("rename", dict)(state))
        if not reference:
            read_back(folder, model, inputs[1])
        if "sentence" in case:
            write_modules(folder, case["sentence"], config["hidden_size"], rng)
            model.sentence_folder = folder
        return record(folder, model, case, inputs)

    attempt(case.get("seed", name), make, home(name), 50)


def read_back(folder, model, given):
    """Sees to it that the folder holds the model."""
    if isinstance(model, JinaBert):
        read = reading(folder)
        read.load_state_dict({n: x.float() for n, x in load_file(
            folder / "model.safetensors").items()})
    else:
        dtype = {"dtype" if VERSION_5 else "torch_dtype": torch.float32}
        read = type(model).from_pretrained(folder, attn_implementation="eager", **dtype).eval()
    ours, theirs = outputs(model, given), outputs(read, given)
    assert all(np.array_equal(ours[kind], theirs[kind]) for kind in ours)


if __name__ == "__main__":
    make_named(CASES | GGUFS, sys.argv[1:],
               lambda name: (make_folder if name in CASES else make_gguf)(name))
