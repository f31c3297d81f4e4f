"""What slots of adapters (LoRA) take on every device."""

from __future__ import annotations

from jaxserve.config.lora import LoraShape
from jaxserve.models.config import Heads
from jaxserve.planner.shape import ModelShape

BYTES = 2  # of a number: adapters are held in the dtype of the activations


def adapter_bytes_device(shape: ModelShape, tp: int, slots: LoraShape) -> int:
    """Bytes of all slots on one of `tp` devices, whatever adapters are in them.

    Of what is split by outputs every device has all of A and a part of B; of what is split by inputs, all of B and a part of A.
    Experts are so, too: groups of devices that share them (`expert_parallel_size`) have less.
    """
    numbers = sum(_attention(shape, tp, *layer) for layer in zip(shape.layer_heads, shape.kept, strict=True))
    numbers += shape.recurrent_layers * _recurrent(shape, tp)
    embed = shape.hidden_size
    numbers += sum(layers * _mlp(shape, embed, ffn // tp) for ffn, layers in shape.dense_sizes.items())
    if (moe := shape.experts) is not None:
        each = moe.count * _mlp(shape, moe.latent_size or embed, moe.ffn_size // tp) if slots.experts else 0
        shared = _mlp(shape, embed, moe.shared_ffn_size // tp) if moe.shared_ffn_size else 0
        latents = 2 * (embed + moe.latent_size) if moe.latent_size else 0
        numbers += sum(moe.layers) * (each + shared + latents)
    return slots.slots * slots.rank * numbers * BYTES


def _attention(shape: ModelShape, tp: int, own: Heads, kept: bool) -> int:
    """Numbers of a layer for each of the rank."""
    embed = shape.hidden_size
    if shape.latent is None:
        query = shape.num_heads * own.head_dim // tp
        gated = (1 + shape.output_gate) * query
        kv = ((1 if own.values_are_keys else 2) * embed + own.columns // min(tp, own.kv_heads)) if kept else 0
        return embed + gated + kv + query + embed
    mla = shape.latent
    heads, down = shape.num_heads // tp, embed + mla.key_dim
    if mla.query_rank is not None:
        down += embed + mla.query_rank
    return down + (mla.query_rank or embed) + heads * (mla.nope_dim + mla.rope_dim) + heads * mla.value_dim + embed


def _recurrent(shape: ModelShape, tp: int) -> int:
    """The same of a layer with a state in the place of attention."""
    net, embed = shape.recurrent, shape.hidden_size
    if net is None:
        return 0
    shared, heads = net.shared_columns
    outputs = (net.columns + net.gates) // tp + shared // min(tp, heads)
    return net.stored_inputs * embed + outputs + net.values // tp + embed  # each matrix has an A of its own


def _mlp(shape: ModelShape, width: int, ffn: int) -> int:
    return (1 + shape.gated) * (width + ffn) + ffn + width
