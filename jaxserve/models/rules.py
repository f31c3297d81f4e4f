"""Weight rules: which tensors of a checkpoint make up a parameter, and how they are packed into it.

Checkpoints store a projection as [out, in]. Parameters are [in, out] and packed for `shards` tensor-parallel devices:
each device's part holds the columns (or rows) it works on side by side, so that no device ever splits or concatenates
a matrix at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
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
    """A tensor that the checkpoint must have.

    Attributes:
        name: its name there.
        shape: its shape there.
        heads: indivisible parts of its first dimension; None if any number of shards that divides it will do.
    """

    name: str
    shape: tuple[int, ...]
    heads: int | None = None

    def parts(self, shards: int) -> int:
        """Into how many parts its first dimension is cut for so many shards: each goes to shards / parts of them."""
        return shards if self.heads is None else min(self.heads, shards)


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One parameter and the tensors it is made from.

    Attributes:
        path: the parameter's place in the tree.
        sources: the tensors, in packing order.
        packing: how they are packed.
    """

    path: Path
    sources: tuple[Source, ...]
    packing: Packing


class Output(NamedTuple):
    """A projection that is packed by columns: its name, its outputs, and how many heads they are (see `Source`)."""

    name: str
    size: int
    heads: int | None = None


def decoder_rules(config: DecoderConfig) -> list[WeightRule]:
    """Rules of a decoder stored under the names that Llama introduced (`model.layers.N.self_attn.q_proj.weight`...)."""
    table = (config.vocab_size, config.hidden_size)
    rules = [
        _whole(("embedding", "table"), "model.embed_tokens.weight", table),
        _whole(("final_norm", "scale"), "model.norm.weight", (config.hidden_size,)),
    ]
    if not config.tie_embeddings:
        rules.append(WeightRule(("head", "kernel"), (Source("lm_head.weight", table),), Packing.TRANSPOSED))
    for layer in range(config.num_layers):
        path, prefix = ("layers", str(layer)), f"model.layers.{layer}"
        rules += _attention_rules(config, path, prefix) + _mlp_rules(config, path, prefix)
    return rules


def _attention_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    embed, head_dim = config.hidden_size, config.head_dim
    query = config.num_heads * head_dim
    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    outputs = [Output(f"{prefix}.self_attn.{name}_proj", count * head_dim, count) for name, count in heads.items()]
    output = f"{prefix}.self_attn.o_proj"
    here = (*path, "attention")
    rules = [
        _whole((*path, "attention_norm", "scale"), f"{prefix}.input_layernorm.weight", (embed,)),
        _columns((*here, "qkv"), outputs, embed),
        WeightRule((*here, "out"), (Source(f"{output}.weight", (embed, query)),), Packing.ROWS),
    ]
    if config.qkv_bias:
        rules.append(_column_biases((*here, "qkv_bias"), outputs))
    if config.output_bias:
        rules.append(_whole((*here, "out_bias"), f"{output}.bias", (embed,)))
    if config.qk_norm:
        rules += [
            _whole((*here, f"{name}_norm", "scale"), f"{prefix}.self_attn.{name}_norm.weight", (head_dim,)) for name in ("q", "k")
        ]
    return rules


def _mlp_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    embed, ffn = config.hidden_size, config.ffn_size
    outputs = [Output(f"{prefix}.mlp.{name}_proj", ffn) for name in ("gate", "up")]
    down = f"{prefix}.mlp.down_proj"
    here = (*path, "mlp")
    rules = [
        _whole((*path, "mlp_norm", "scale"), f"{prefix}.post_attention_layernorm.weight", (embed,)),
        _columns((*here, "gate_up"), outputs, embed),
        WeightRule((*here, "down"), (Source(f"{down}.weight", (embed, ffn)),), Packing.ROWS),
    ]
    if config.mlp_bias:
        rules.append(_column_biases((*here, "gate_up_bias"), outputs))
        rules.append(_whole((*here, "down_bias"), f"{down}.bias", (embed,)))
    return rules


def _whole(path: Path, name: str, shape: tuple[int, ...]) -> WeightRule:
    return WeightRule(path, (Source(name, shape),), Packing.WHOLE)


def _columns(path: Path, outputs: Sequence[Output], inputs: int) -> WeightRule:
    sources = tuple(Source(f"{output.name}.weight", (output.size, inputs), output.heads) for output in outputs)
    return WeightRule(path, sources, Packing.COLUMNS)


def _column_biases(path: Path, outputs: Sequence[Output]) -> WeightRule:
    sources = tuple(Source(f"{output.name}.bias", (output.size,), output.heads) for output in outputs)
    return WeightRule(path, sources, Packing.COLUMNS)
