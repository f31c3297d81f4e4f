"""Weight rules: which tensors of a checkpoint make up a parameter, and how they are packed into it.

Checkpoints store a projection as [out, in]. Parameters are [in, out] and packed for `shards` tensor-parallel devices:
each device's part holds the columns (or rows) it works on side by side, so that no device ever splits or concatenates
a matrix at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from jaxserve.models.config import DecoderConfig

Path = tuple[str, ...]


class Packing(Enum):
    """How the tensors of a rule become one parameter; s is the number of shards, X the columns or rows of one."""

    WHOLE = auto()
    """One tensor as it is; a first dimension padded for the shards gets zeros at the end."""
    TRANSPOSED = auto()
    """One matrix [out, in] as [in, out]; padded columns at the end are zeros."""
    COLUMNS = auto()
    """Several [out_i, in] as [in, s, X]: shard j has the j-th part of every out_i. Vectors [out_i] as [s, X].

    A source of fewer heads than shards has as many parts as heads, and each goes to neighbouring shards.
    """
    ROWS = auto()
    """One matrix [out, in] as [s, X, out]: shard j has the j-th part of `in`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix [out, in] or vector [out], from a tensor that the checkpoint must have.

    Attributes:
        name: the tensor's name there.
        shape: of the matrix: the tensor's own, unless what follows says that this is a part of it.
        heads: indivisible parts of its first dimension; None if any number of shards that divides it will do.
        first_row: where in the tensor the rows begin.
        rows: how many rows the tensor has; None if all of them are taken.
        row_step: from each row to the next one that is taken: 2 where two matrices' rows alternate.
        transposed: the tensor has matrices as [in, out].
        expert: which one is meant of the tensor's matrices, all experts' one after the other; None if it has no such dimension.
        experts: how many those are.
        depthwise: the tensor is a convolution of each channel by itself, [C, 1, W].
    """

    name: str
    shape: tuple[int, ...]
    heads: int | None = None
    first_row: int = 0
    rows: int | None = None
    row_step: int = 1
    transposed: bool = False
    expert: int | None = None
    experts: int = 1
    depthwise: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        matrix = self.shape if self.rows is None else (self.rows, *self.shape[1:])
        if self.depthwise:
            return matrix[0], 1, matrix[1]
        stored = matrix[::-1] if self.transposed else matrix
        return stored if self.expert is None else (self.experts, *stored)

    def parts(self, shards: int) -> int:
        """Into how many parts its first dimension is cut for so many shards: each goes to shards / parts of them."""
        return shards if self.heads is None else min(self.heads, shards)

    def rows_of(self, shard: int, shards: int) -> tuple[int, int]:
        """Where in its first dimension that shard's part begins and ends."""
        parts = self.parts(shards)
        number, width = shard * parts // shards, self.shape[0] // parts
        return number * width, (number + 1) * width


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One parameter and the tensors it is made from.

    Attributes:
        path: the parameter's place in the tree.
        sources: the tensors, in packing order.
        packing: how they are packed.
        stack: how many of a kind the parameter has along a first dimension, as every expert's own, or all norms: `sources` are
            those of the first one, then those of the next; None if it has no such dimension.
    """

    path: Path
    sources: tuple[Source, ...]
    packing: Packing
    stack: int | None = None

    def member(self, number: int) -> WeightRule:
        """The rule of one of a parameter that has several of a kind."""
        each = len(self.sources) // (self.stack or 1)
        return replace(self, sources=self.sources[number * each : (number + 1) * each], stack=None)


class Output(NamedTuple):
    """A projection that is packed by columns: its name, its outputs, and how many heads they are (see `Source`)."""

    name: str
    size: int
    heads: int | None = None


# What checkpoints call the norms of a layer, by the place of the norms.
_NORMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "before": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
        "after": {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm"},
        "parallel": {"attention_norm": "input_layernorm"},
        "around": {
            "attention_norm": "input_layernorm",
            "attention_out_norm": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "mlp_out_norm": "post_feedforward_layernorm",
            "shared_out_norm": "post_feedforward_layernorm_1",
            "experts_norm": "pre_feedforward_layernorm_2",
            "experts_out_norm": "post_feedforward_layernorm_2",
            "layer_input_norm": "post_per_layer_input_norm",
        },
    }
)


LayerRules = Callable[[DecoderConfig, Path, str], list[WeightRule]]
"""Rules of a part of one layer, from the layer's path in the tree and the beginning of its tensors' names."""


def decoder_rules(
    config: DecoderConfig,
    *,
    fused: bool = False,
    attention: LayerRules | None = None,
    experts: LayerRules | None = None,
    recurrent: LayerRules | None = None,
    mlp: LayerRules | None = None,
) -> list[WeightRule]:
    """Rules of a decoder stored under the names that Llama introduced (`model.layers.N.self_attn.q_proj.weight`...).

    Args:
        config: the decoder.
        fused: queries, keys and values are one matrix `qkv_proj`, and the MLP's gate and up another, `gate_up_proj`.
        attention: of the attention, where it is not Llama's.
        experts: of the MLP in layers that have experts; see `expert_rules`.
        mlp: of the MLP in layers that have none.
        recurrent: of what layers with a state of fixed size have in the place of attention.
    """
    table = (config.vocab_size, config.hidden_size)
    rules = [
        whole(("embedding", "table"), "model.embed_tokens.weight", table),
        _norm_rule(config),
    ]
    if not config.tie_embeddings:
        rules.append(WeightRule(("head", "kernel"), (Source("lm_head.weight", table),), Packing.TRANSPOSED))
    for layer in range(config.num_layers):
        path, prefix = ("layers", str(layer)), f"model.layers.{layer}"
        mixing = attention if config.recurrent_of(layer) is None else recurrent
        rules += mixing(config, path, prefix) if mixing else attention_rules(config, path, prefix, layer, fused=fused)
        if not config.has_mlp(layer):
            continue
        feeding = mlp if config.experts_of(layer) is None else experts
        sized = replace(config, ffn_size=config.ffn_of(layer))
        rules += feeding(config, path, prefix) if feeding else mlp_rules(sized, (*path, "mlp"), f"{prefix}.mlp", fused=fused)
    return rules


def _norm_rule(config: DecoderConfig) -> WeightRule:
    """The rule of all norms over E; see `norm.Norms`."""
    stored = _NORMS[config.norms]
    names = [f"layers.{layer}.{stored[norm]}" for layer, norm in config.layer_norms]
    sources = tuple(Source(f"model.{name}.weight", (config.hidden_size,)) for name in (*names, "norm"))
    return WeightRule(("norms", "scale"), sources, Packing.WHOLE, len(sources))


def attention_rules(config: DecoderConfig, path: Path, prefix: str, layer: int = 0, *, fused: bool = False) -> list[WeightRule]:
    """Rules of a layer's attention, of which number it is; `fused` as in `decoder_rules`."""
    own, embed = config.heads_of(layer), config.hidden_size
    head_dim, query = own.head_dim, config.num_heads * own.head_dim
    heads = {"q": config.num_heads}
    if config.kv_source(layer) == layer:
        heads |= {"k": own.kv_heads} if own.values_are_keys else {"k": own.kv_heads, "v": own.kv_heads}
    gated = 1 + config.output_gate  # each head's gate lies behind its query
    sizes = {name: count * head_dim * (gated if name == "q" else 1) for name, count in heads.items()}
    outputs = [Output(f"{prefix}.self_attn.{name}_proj", size, heads[name]) for name, size in sizes.items()]
    output = f"{prefix}.self_attn.o_proj"
    here = (*path, "attention")
    rules = [
        columns((*here, "qkv"), outputs, embed, f"{prefix}.self_attn.qkv_proj" if fused else None),
        WeightRule((*here, "out"), (Source(f"{output}.weight", (embed, query)),), Packing.ROWS),
    ]
    if config.qkv_bias:
        rules.append(column_biases((*here, "qkv_bias"), outputs))
    if config.output_bias:
        rules.append(whole((*here, "out_bias"), f"{output}.bias", (embed,)))
    for name in (name for name in ("q", "k") if name in heads):
        scale, stored = (*here, f"{name}_norm", "scale"), f"{prefix}.self_attn.{name}_norm.weight"
        if config.qk_norm == "head":
            rules.append(whole(scale, stored, (head_dim,)))
        elif config.qk_norm == "all":
            rules.append(WeightRule(scale, (Source(stored, (heads[name] * head_dim,), heads[name]),), Packing.COLUMNS))
    return rules


def mlp_rules(config: DecoderConfig, path: Path, prefix: str, *, fused: bool = False) -> list[WeightRule]:
    """Rules of an MLP at a path, stored as `prefix`.gate_proj and so on; `fused` as in `decoder_rules`."""
    embed, ffn = config.hidden_size, config.ffn_size
    outputs = [Output(f"{prefix}.{name}_proj", ffn) for name in (("gate", "up") if config.gated else ("up",))]
    first, down = "gate_up" if config.gated else "up", f"{prefix}.down_proj"
    rules = [
        columns((*path, first), outputs, embed, f"{prefix}.gate_up_proj" if fused else None),
        WeightRule((*path, "down"), (Source(f"{down}.weight", (embed, ffn)),), Packing.ROWS),
    ]
    if config.mlp_bias:
        rules.append(column_biases((*path, f"{first}_bias"), outputs))
        rules.append(whole((*path, "down_bias"), f"{down}.bias", (embed,)))
    return rules


def renamed(rules: Iterable[WeightRule], names: Mapping[str, str]) -> list[WeightRule]:
    """Rules of a family that calls parts of tensors' names otherwise: the first of `names` that a tensor's has is replaced."""

    def stored(name: str) -> str:
        usual = next((usual for usual in names if usual in name), "")
        return name.replace(usual, names[usual]) if usual else name

    return [replace(rule, sources=tuple(replace(each, name=stored(each.name)) for each in rule.sources)) for rule in rules]


def whole(path: Path, name: str, shape: tuple[int, ...]) -> WeightRule:
    return WeightRule(path, (Source(name, shape),), Packing.WHOLE)


def columns(path: Path, outputs: Sequence[Output], inputs: int, fused: str | None = None) -> WeightRule:
    """The rule of matrices of their own, or of one, `fused`, that has their rows one after the other."""
    if fused is None:
        sources = [Source(f"{output.name}.weight", (output.size, inputs), output.heads) for output in outputs]
        return WeightRule(path, tuple(sources), Packing.COLUMNS)
    firsts = accumulate((output.size for output in outputs), initial=0)
    total = sum(output.size for output in outputs)
    parts = [
        Source(f"{fused}.weight", (output.size, inputs), output.heads, first, total)
        for output, first in zip(outputs, firsts, strict=False)
    ]
    return WeightRule(path, tuple(parts), Packing.COLUMNS)


def column_biases(path: Path, outputs: Sequence[Output]) -> WeightRule:
    """The rule of the biases of matrices that are packed by columns."""
    sources = tuple(Source(f"{output.name}.bias", (output.size,), output.heads) for output in outputs)
    return WeightRule(path, sources, Packing.COLUMNS)


def dense_rules(config: DecoderConfig) -> list[WeightRule]:
    """Where the tensors of layers behind the pooled hidden state go, which lie in files of their own (`weights.modules`)."""
    rules = []
    for place, dense in enumerate(config.dense):
        path, name = ("dense", str(place)), f"{dense.folder}/linear"
        source = Source(f"{name}.weight", (dense.outputs, dense.inputs))
        rules.append(WeightRule((*path, "kernel"), (source,), Packing.TRANSPOSED))
        if dense.bias:
            rules.append(whole((*path, "bias"), f"{name}.bias", (dense.outputs,)))
    return rules


def score_rules(config: DecoderConfig) -> list[WeightRule]:
    """Where the tensor of a head that classifies goes; nothing without one."""
    if not config.labels:
        return []
    return [WeightRule(("score", "kernel"), (Source("score.weight", (config.labels, config.hidden_size)),), Packing.TRANSPOSED)]
