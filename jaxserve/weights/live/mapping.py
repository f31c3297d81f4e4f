"""Which table of views a tree is read by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.rules import WeightRule
from jaxserve.weights.live.hf_views import hf_views, is_hf
from jaxserve.weights.live.maxtext_views import is_maxtext, maxtext_views
from jaxserve.weights.live.trees import Arrays
from jaxserve.weights.live.tunix_views import is_tunix, tunix_views
from jaxserve.weights.live.views import Views

Mapper = Callable[[DecoderConfig, Arrays], Views]
ParamMapping = Literal["auto", "hf", "maxtext", "tunix"] | Views | Mapper
"""How a tree is read: the name of a known kind, a table of views, or what makes one of the decoder and the tree's arrays."""
_KINDS = ("hf", "maxtext", "tunix")
_SHOWN = 3


def views_of(config: DecoderConfig, rules: Sequence[WeightRule], arrays: Arrays, mapping: ParamMapping) -> Views:
    """Where every tensor of the rules is in a tree.

    Raises:
        CheckpointError: a tree that is of no known kind, or not of this decoder; a table that lacks tensors.
        ConfigError: a mapping that there is not.
    """
    if callable(mapping):
        return _complete(mapping(config, arrays), rules)
    if isinstance(mapping, Mapping):
        return _complete(mapping, rules)
    match _kind(arrays) if mapping == "auto" else mapping:
        case "hf":
            return hf_views(rules)
        case "maxtext":
            return maxtext_views(config, arrays)
        case "tunix":
            return tunix_views(config, rules, arrays)
    raise ConfigError(f"mapping must be 'auto', {', '.join(map(repr, _KINDS))} or a table, not {mapping!r}", param="mapping")


def _kind(arrays: Arrays) -> str:
    found = (("hf", is_hf), ("maxtext", is_maxtext), ("tunix", is_tunix))
    for kind, test in found:
        if test(arrays):
            return kind
    shown = ", ".join(sorted(arrays)[:_SHOWN]) or "nothing"
    raise CheckpointError(
        f"params: names like {shown} are of no tree that is known ({', '.join(_KINDS)}); say with mapping where each tensor is",
        param="mapping",
    )


def _complete(views: Views, rules: Sequence[WeightRule]) -> Views:
    missing = [source.name for rule in rules for source in rule.sources if source.name not in views]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise CheckpointError(f"mapping has nothing for {', '.join(missing[:_SHOWN])}{more}", param="mapping")
    return views
