"""A draft model or head beside a model: its shape, and what it adds to every device."""

from __future__ import annotations

from dataclasses import replace

from jaxserve.config.speculative import SpeculativeConfig
from jaxserve.config.windows import group_layers
from jaxserve.errors import ConfigError
from jaxserve.models.draft_heads import head_config, is_draft_head
from jaxserve.planner import catalogue
from jaxserve.planner.hf import shape_from_hf, shape_of
from jaxserve.planner.memory import Layout
from jaxserve.planner.shape import ModelShape


def with_draft(layout: Layout, speculation: SpeculativeConfig | None) -> Layout:
    """The layout with the draft that is asked for, if one is. It is held in 16 bits, whatever the format of the target.

    Raises:
        ConfigError: an unknown model, or one that cannot guess for this target.
        CheckpointError, UnsupportedModelError: a config.json that cannot be planned with.
    """
    if speculation is None or not speculation.runs_model:
        return layout
    if not speculation.model:
        raise ConfigError(
            f"speculative_config: method {speculation.method!r}: plans count drafts with a config.json of their own, "
            "which 'model' names",
            param="speculative_config",
        )
    if None not in group_layers(layout.shape.cache_windows).windows:
        raise ConfigError(
            "speculative_config: model: every layer of the target has a sliding window, so that no page keeps what a draft must "
            "see",
            param="speculative_config",
        )
    shape = draft_shape(speculation.model, layout.shape)
    if shape.vocab_size != layout.shape.vocab_size:
        raise ConfigError(
            f"speculative_config: model: the draft has {shape.vocab_size} tokens, the target {layout.shape.vocab_size}: both "
            "must have as many",
            param="speculative_config",
        )
    return replace(layout, draft=replace(layout, shape=shape, weights="bf16"))


def draft_shape(name: str, target: ModelShape) -> ModelShape:
    """The shape of a draft model or head, which is found as models are."""
    found = catalogue.config_of(name)
    if is_draft_head(found.hf):
        return shape_of(head_config(found.hf, target, ()), found.name)
    return shape_from_hf(found.hf, found.name, found.where)
