"""Which experts a token visits, and how much each of them counts."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxserve.models.config import Experts, Routing
from jaxserve.ordering import largest

TINY = 1e-20  # keeps a sum of weights that have all underflowed from being divided by


class Routed(NamedTuple):
    """The choice of T tokens: experts int32[T, k], the best first, and their weights float32[T, k]."""

    experts: jax.Array
    weights: jax.Array


def route(logits: jax.Array, correction: jax.Array | None, experts: Experts) -> Routed:
    """Choose each token's experts (Shazeer et al. 2017; groups and correction: DeepSeek-AI 2024). Ties go to the lower number.

    Args:
        logits: float32[T, X], the router's.
        correction: float32[X], if the routing has one.
        experts: says how many are chosen, and how.
    """
    routing = experts.routing
    scores = jax.nn.softmax(logits, axis=-1) if routing.score == "softmax" else jax.nn.sigmoid(logits)
    choice = scores if correction is None else scores + correction[None]
    if routing.active_groups < routing.groups:
        choice = jnp.where(_in_best_groups(choice, routing), choice, -jnp.inf)
    chosen = largest(choice, experts.active)
    weights = jnp.take_along_axis(scores, chosen, axis=1)
    if routing.normalize:
        weights = weights / (jnp.sum(weights, axis=1, keepdims=True) + TINY)
    return Routed(chosen, weights * routing.scale)


def _in_best_groups(choice: jax.Array, routing: Routing) -> jax.Array:
    """bool[T, X]: whether an expert is in one of its token's best groups."""
    tokens, count = choice.shape
    size = count // routing.groups
    by_group = choice.reshape(tokens * routing.groups, size)
    best = jnp.take_along_axis(by_group, largest(by_group, 1 if routing.group_score == "max" else 2), axis=1)
    groups = largest(jnp.sum(best, axis=1).reshape(tokens, routing.groups), routing.active_groups)
    group = jnp.arange(count, dtype=jnp.int32) // size
    return jnp.any(groups[:, :, None] == group[None, None, :], axis=1)
