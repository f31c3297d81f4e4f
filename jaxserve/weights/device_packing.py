"""Packs matrices that are on devices as `packing` packs those of a checkpoint, inside a jitted function."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxserve.models.rules import Packing

Parts = tuple[int, ...]
"""Of a packing by columns: into how many parts each source is cut."""


def pack_sources(sources: Sequence[jax.Array], packing: Packing, parts: Parts, shape: tuple[int, ...]) -> jax.Array:
    """One parameter, or one of a stack, from the matrices [out, in] or vectors [out] of its rule.

    Args:
        sources: of the rule, in its order.
        packing: of the rule.
        parts: of each source, if they are packed by columns.
        shape: the parameter's, padding included.
    """
    match packing:
        case Packing.WHOLE:
            return _pad(sources[0], shape)
        case Packing.TRANSPOSED:
            return _pad(sources[0].T, shape)
        case Packing.ROWS:
            return sources[0].T.reshape(shape)
        case Packing.COLUMNS:
            packed = [_columns(source.T, shape[-2], count) for source, count in zip(sources, parts, strict=True)]
            return jnp.concatenate(packed, axis=-1)


def _columns(source: jax.Array, shards: int, parts: int) -> jax.Array:
    """[..., out] in `parts` parts, each for shards / parts neighbouring shards: [..., shards, out / parts]."""
    return jnp.repeat(source.reshape(*source.shape[:-1], parts, -1), shards // parts, axis=-2)


def _pad(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.pad(x, [(0, whole - part) for whole, part in zip(shape, x.shape, strict=True)])
