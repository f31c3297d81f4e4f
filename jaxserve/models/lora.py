"""Which projections of a decoder may have low-rank adapters, and of which shapes their matrices are."""

from __future__ import annotations

from typing import NamedTuple

from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import weight_rules
from jaxserve.models.rules import Packing, Path, WeightRule

_PARTS: frozenset[Path] = frozenset({("attention", "qkv"), ("attention", "query"), ("attention", "out")})
_PARTS |= {("attention", "inputs"), ("attention", "gates")}
_PARTS |= {("mlp", *shared, name) for shared in ((), ("shared",)) for name in ("gate_up", "up", "down")}
_WHOLE: frozenset[Path] = frozenset({("attention", "down"), ("mlp", "latent", "down"), ("mlp", "latent", "up")})
_PARTS |= _WHOLE
_EXPERTS: frozenset[Path] = frozenset({("mlp", "gate_up"), ("mlp", "up"), ("mlp", "down")})


class LoraArrays(NamedTuple):
    """Shapes of `adapted.Lora`, or of one adapter's part of it: those without the first dimension."""

    a: tuple[int, ...]
    b: tuple[tuple[int, ...], ...]


def lora_rules(config: DecoderConfig, *, experts: bool = False) -> dict[Path, WeightRule]:
    """The projections that may have adapters, by the path of their parameter: those of attention, of what is in its
    place, and of dense MLPs.

    A shared expert is a dense MLP; `experts`: those of routed experts, too. Routers, what is applied to latents head by head, the
    table and the head may not.
    """
    stacked: frozenset[Path] = _EXPERTS if experts else frozenset()
    return {rule.path: rule for rule in weight_rules(config) if rule.path[2:] in (_PARTS if rule.stack is None else stacked)}


def lora_arrays(rule: WeightRule, shards: int, rank: int) -> LoraArrays:
    """Shapes of one adapter's matrices for a projection that is packed for so many shards; of experts', one after the other."""
    if rule.stack is not None:
        one = lora_arrays(rule.member(0), shards, rank)
        return LoraArrays((rule.stack, *one.a), tuple((rule.stack, *b) for b in one.b))
    outputs, inputs = rule.sources[0].shape
    if rule.packing is Packing.ROWS:
        return LoraArrays((rank, shards, inputs // shards), ((rank, outputs),))
    parts = 1 if _is_whole(rule) else shards
    widths = [source.shape[0] // source.parts(parts) for source in rule.sources]
    return LoraArrays((len(widths) * rank, inputs), tuple((rank, parts, width) for width in widths))


def _is_whole(rule: WeightRule) -> bool:
    """Whether every device has all of it: a projection to latents, or from those of experts."""
    return rule.path[2:] in _WHOLE
