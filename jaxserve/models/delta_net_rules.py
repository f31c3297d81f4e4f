"""Weight rules of gated delta nets, as Qwen3-Next and its successors store them."""

from __future__ import annotations

from jaxserve.models.config import DecoderConfig
from jaxserve.models.recurrent import DeltaNet
from jaxserve.models.rules import Packing, Path, Source, WeightRule, whole


def interleaved_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules where two matrices have all projections, those of a key head's side by side (Qwen3-Next)."""
    net, stored = _net(config), f"{prefix}.linear_attn"
    inputs = net.channels + net.heads * net.value_dim
    sources = {"inputs": ("in_proj_qkvz", inputs), "gates": ("in_proj_ba", 2 * net.heads)}
    rules = [
        WeightRule(
            (*path, "attention", name),
            (Source(f"{stored}.{tensor}.weight", (size, config.hidden_size), net.key_heads),),
            Packing.COLUMNS,
        )
        for name, (tensor, size) in sources.items()
    ]
    return [*rules, *_others(config, net, path, stored)]


def separate_rules(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """The LayerRules where queries, keys and values are one matrix after the other, and all else has its own (Qwen3.5)."""
    net, stored, embed = _net(config), f"{prefix}.linear_attn", config.hidden_size
    gate = Source(f"{stored}.in_proj_z.weight", (net.heads * net.value_dim, embed), net.heads)
    gates = [Source(f"{stored}.in_proj_{name}.weight", (net.heads, embed), net.heads) for name in ("b", "a")]
    here = (*path, "attention")
    return [
        WeightRule((*here, "inputs"), (*_mixed(net, f"{stored}.in_proj_qkv.weight", embed), gate), Packing.COLUMNS),
        WeightRule((*here, "gates"), tuple(gates), Packing.COLUMNS),
        *_others(config, net, path, stored),
    ]


def _others(config: DecoderConfig, net: DeltaNet, path: Path, stored: str) -> list[WeightRule]:
    """What both have alike."""
    here, values = (*path, "attention"), net.heads * net.value_dim
    by_head = {"decay": "A_log", "decay_bias": "dt_bias"}
    return [
        WeightRule((*here, "conv"), _mixed(net, f"{stored}.conv1d.weight", net.width, depthwise=True), Packing.COLUMNS),
        *(
            WeightRule((*here, name), (Source(f"{stored}.{tensor}", (net.heads,), net.heads),), Packing.COLUMNS)
            for name, tensor in by_head.items()
        ),
        whole((*here, "norm"), f"{stored}.norm.weight", (net.value_dim,)),
        WeightRule((*here, "out"), (Source(f"{stored}.out_proj.weight", (config.hidden_size, values)),), Packing.ROWS),
    ]


def _mixed(net: DeltaNet, name: str, inputs: int, *, depthwise: bool = False) -> tuple[Source, ...]:
    """Queries, keys and values of a tensor that has them one after the other."""
    keys, values = net.key_heads * net.key_dim, net.heads * net.value_dim
    parts = ((keys, net.key_heads, 0), (keys, net.key_heads, keys), (values, net.heads, 2 * keys))
    return tuple(Source(name, (size, inputs), heads, first, net.channels, depthwise=depthwise) for size, heads, first in parts)


def _net(config: DecoderConfig) -> DeltaNet:
    assert isinstance(config.recurrent, DeltaNet)
    return config.recurrent
