"""What slots of adapters (LoRA) take on every device."""

from __future__ import annotations

from jaxserve.config.lora import LoraShape
from jaxserve.planner.shape import ModelShape

BYTES = 2  # of a number: adapters are held in the dtype of the activations


def adapter_bytes_device(shape: ModelShape, tp: int, slots: LoraShape) -> int:
    """Bytes of all slots on one of `tp` devices, whatever adapters are in them.

    Of what is split by outputs every device has all of A and a part of B; of what is split by inputs, all of B and a part of A.
    Experts are so, too: groups of devices that share them (`expert_parallel_size`) have less.
    """
    numbers = shape.num_layers * _attention(shape, tp) + shape.dense_layers * _gated_mlp(shape, shape.ffn_size // tp)
    if (moe := shape.experts) is not None:
        each = moe.count * _gated_mlp(shape, moe.ffn_size // tp) if slots.experts else 0
        shared = _gated_mlp(shape, moe.shared_ffn_size // tp) if moe.shared_ffn_size else 0
        numbers += sum(moe.layers) * (each + shared)
    return slots.slots * slots.rank * numbers * BYTES


def _attention(shape: ModelShape, tp: int) -> int:
    """Numbers of a layer for each of the rank."""
    embed = shape.hidden_size
    if shape.latent is None:
        query, kv = shape.num_heads * shape.head_dim // tp, 2 * shape.num_kv_heads * shape.head_dim // min(tp, shape.num_kv_heads)
        return 3 * embed + query + kv + query + embed
    mla = shape.latent
    heads, down = shape.num_heads // tp, embed + mla.kv_rank + mla.rope_dim
    if mla.query_rank is not None:
        down += embed + mla.query_rank
    return down + (mla.query_rank or embed) + heads * (mla.nope_dim + mla.rope_dim) + heads * mla.value_dim + embed


def _gated_mlp(shape: ModelShape, ffn: int) -> int:
    return 2 * shape.hidden_size + 2 * ffn + ffn + shape.hidden_size
