"""Shows a Llama checkpoint of MaxText as the tensors that Hugging Face checkpoints have.

Names, order of axes and conventions are those of MaxText's own conversions between the two
(https://github.com/AI-Hypercomputer/maxtext, checkpoint conversion for Llama and Mistral):

- projections are [in, heads, D] and [heads, D, out]; stacked ("scanned") layers are the second dimension of everything;
- queries are divided by sqrt(D) in the weights, so that attention need not scale them;
- the rotary embedding of Llama 3.1 turns neighbouring elements of a head; the others, as Hugging Face, its two halves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.config import DecoderConfig
from jaxserve.weights.checkpoint import Block, Bounds, Checkpoint, whole

RopePairs = Literal["neighbours", "halves"]
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
_PREFIXES = ("params.params.", "params.", "")  # training state, parameters only, a bare tree
EMBEDDING = "token_embedder.embedding"
LAYERS = "decoder.layers"
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as MaxText stores it.

    Attributes:
        name: in the tree.
        shape: of one layer's part: inputs first.
        inputs: how many of its dimensions are inputs; the others are outputs.
        layer: of stacked layers; None if the tensor is not stacked.
        turned: whether its heads go through the rotary embedding.
        factor: what it must be multiplied by.
    """

    name: str
    shape: tuple[int, ...]
    inputs: int
    layer: int | None = None
    turned: bool = False
    factor: float = 1.0

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """As Hugging Face has it: [out, in], or as it is where nothing comes out of it."""
        inputs, outputs = math.prod(self.shape[: self.inputs]), math.prod(self.shape[self.inputs :])
        return self.shape if self.inputs == len(self.shape) else (outputs, inputs)

    def stored_shape(self, layers: int) -> tuple[int, ...]:
        """With the dimension of the layers."""
        return self.shape if self.layer is None else (self.shape[0], layers, *self.shape[1:])


class MaxTextCheckpoint:
    """A MaxText checkpoint of a Llama or Mistral under Hugging Face's names. See `Checkpoint`.

    Args:
        stored: the Orbax checkpoint.
        rope: which elements of a head the rotary embedding turns together.

    Raises:
        UnsupportedModelError: another architecture.
        CheckpointError: not a checkpoint of MaxText, or not of this decoder.
    """

    def __init__(self, stored: Checkpoint, config: DecoderConfig, rope: RopePairs) -> None:
        self._tensors = stored_tensors(config, stored.shapes)
        self._stored = stored
        self._rope = rope
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tensor.logical_shape for name, tensor in self._tensors.items()}
        self.dtypes: Mapping[str, str] = {name: stored.dtypes[tensor.name] for name, tensor in self._tensors.items()}

    def __enter__(self) -> MaxTextCheckpoint:
        self._stored.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stored.__exit__(kind, error, trace)

    def reads_rows(self, name: str) -> bool:
        """Never: rows lie across its axes."""
        return name not in self._tensors

    def file_of(self, name: str) -> Path | None:
        return self._stored.file_of(self._tensors[name].name) if name in self._tensors else None

    def read(self, name: str, bounds: Bounds) -> Block:
        """See `Tensors`. Reads the whole tensor."""
        tensor = self._tensors[name]
        everything = whole(tensor.shape)
        if tensor.layer is None:
            block = self._stored.read(tensor.name, everything)
        else:
            layer = (tensor.layer, tensor.layer + 1)
            block = self._stored.read(tensor.name, (everything[0], layer, *everything[1:]))[:, 0]
        if tensor.turned and self._rope == "neighbours":
            block = np.concatenate([block[..., ::2], block[..., 1::2]], axis=-1)
        if tensor.factor != 1.0:
            block = (block.astype(np.float32) * np.float32(tensor.factor)).astype(block.dtype)
        if tensor.inputs < len(tensor.shape):
            inputs = math.prod(tensor.shape[: tensor.inputs])
            block = block.reshape(inputs, -1).T
        return np.ascontiguousarray(block[tuple(slice(*part) for part in bounds)])


def usual_rope(config: DecoderConfig) -> RopePairs:
    """Which elements of a head MaxText's rotary embedding turns together in such a model, unless somebody says."""
    turned = next((rope for rope in config.ropes if rope is not None), None)
    return "neighbours" if turned is not None and turned.kind == "llama3" else "halves"


def stored_tensors(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Stored]:
    """Where each tensor of a checkpoint of Hugging Face is in a tree of MaxText's, whose arrays have these shapes.

    Raises:
        UnsupportedModelError: another architecture.
        CheckpointError: not a tree of MaxText, or not of this decoder.
    """
    _require_known(config)
    prefix = next((prefix for prefix in _PREFIXES if prefix + EMBEDDING in shapes), None)
    if prefix is None:
        raise CheckpointError(f"no checkpoint of MaxText: it has no {EMBEDDING}", param="model")
    is_stacked = any(name.startswith(f"{prefix}{LAYERS}.") for name in shapes)
    tensors = dict(_tensors(config, prefix, is_stacked=is_stacked))
    _check(tensors, shapes, prefix, config.num_layers)
    return tensors


def tensors_beside(config: DecoderConfig, names: Collection[str]) -> dict[str, Stored]:
    """The same of a tree that has nothing but some of its layers' arrays, or what lies beside them.

    Raises UnsupportedModelError for another architecture.
    """
    _require_known(config)
    first = (prefix for prefix in _PREFIXES if any(name.startswith(f"{prefix}{LAYERS}") for name in names))
    prefix = next(first, _PREFIXES[-1])
    return dict(_tensors(config, prefix, is_stacked=any(name.startswith(f"{prefix}{LAYERS}.") for name in names)))


def _require_known(config: DecoderConfig) -> None:
    if config.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"checkpoints of MaxText are read for {' and '.join(ARCHITECTURES)}, not {config.architecture}"
        )


def _tensors(config: DecoderConfig, prefix: str, *, is_stacked: bool) -> Iterator[tuple[str, Stored]]:
    """Every tensor of the decoder: Hugging Face's name, and what MaxText has."""
    embed, ffn, head_dim = config.hidden_size, config.ffn_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    yield "model.embed_tokens.weight", Stored(prefix + EMBEDDING, (config.vocab_size, embed), 2)
    yield "model.norm.weight", Stored(f"{prefix}decoder.decoder_norm.scale", (embed,), 1)
    if not config.tie_embeddings:
        yield "lm_head.weight", Stored(f"{prefix}decoder.logits_dense.kernel", (embed, config.vocab_size), 1)
    scale = math.sqrt(head_dim)
    for number in range(config.num_layers):
        here, layer = (f"{prefix}{LAYERS}", number) if is_stacked else (f"{prefix}{LAYERS}_{number}", None)
        there = f"model.layers.{number}"
        attention = f"{here}.self_attention"
        yield f"{there}.input_layernorm.weight", Stored(f"{here}.pre_self_attention_layer_norm.scale", (embed,), 1, layer)
        yield (
            f"{there}.post_attention_layernorm.weight",
            Stored(f"{here}.post_self_attention_layer_norm.scale", (embed,), 1, layer),
        )
        query = Stored(f"{attention}.query.kernel", (embed, heads, head_dim), 1, layer, turned=True, factor=scale)
        yield f"{there}.self_attn.q_proj.weight", query
        key = Stored(f"{attention}.key.kernel", (embed, kv_heads, head_dim), 1, layer, turned=True)
        yield f"{there}.self_attn.k_proj.weight", key
        yield f"{there}.self_attn.v_proj.weight", Stored(f"{attention}.value.kernel", (embed, kv_heads, head_dim), 1, layer)
        yield f"{there}.self_attn.o_proj.weight", Stored(f"{attention}.out.kernel", (heads, head_dim, embed), 2, layer)
        for name, stored, shape in (("gate", "wi_0", (embed, ffn)), ("up", "wi_1", (embed, ffn)), ("down", "wo", (ffn, embed))):
            yield f"{there}.mlp.{name}_proj.weight", Stored(f"{here}.mlp.{stored}.kernel", shape, 1, layer)


def _check(tensors: Mapping[str, Stored], shapes: Mapping[str, tuple[int, ...]], prefix: str, layers: int) -> None:
    """Raise unless the tree has exactly these parameters. What lies beside them, such as the optimizer's state, is nobody's."""
    expected = {tensor.name: tensor.stored_shape(layers) for tensor in tensors.values()}
    wrong = [
        f"{name} is {list(shapes[name]) if name in shapes else 'missing'}, needs {list(shape)}"
        for name, shape in expected.items()
        if shapes.get(name) != shape
    ]
    inside = (f"{prefix}decoder.", f"{prefix}token_embedder.")
    wrong += [f"{name} is unknown" for name in sorted(shapes) if name.startswith(inside) and name not in expected]
    if wrong:
        more = f" and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise CheckpointError(f"the checkpoint of MaxText does not fit: {'; '.join(wrong[:_LISTED])}{more}", param="model")
