"""Trees whose names are those of Hugging Face's checkpoints: every tensor is an array of its own."""

from __future__ import annotations

from collections.abc import Iterable

from jaxserve.models.rules import WeightRule
from jaxserve.weights.live.trees import Arrays
from jaxserve.weights.live.views import View, Views

EMBEDDING = "model.embed_tokens.weight"


def is_hf(arrays: Arrays) -> bool:
    return any(name == EMBEDDING or name.startswith("model.layers.") for name in arrays)


def hf_views(rules: Iterable[WeightRule]) -> Views:
    return {source.name: View(source.name, source.stored_shape) for rule in rules for source in rule.sources}
