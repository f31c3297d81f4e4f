"""Any tree of arrays as a flat dict of them: nested dicts and lists, NNX modules and states, by paths joined with dots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxserve.errors import CheckpointError

Arrays = Mapping[str, Any]
"""jax.Array or np.ndarray by path. Names of Hugging Face's checkpoints have dots already and stay as they are."""


def named_arrays(params: Any) -> Arrays:
    """The arrays of a tree by name. Of an NNX module its parameters alone: not its caches, nor its random state.

    Raises CheckpointError for something in it that is no array, or a name that is there twice.
    """
    found: dict[str, Any] = {}
    for name, leaf in _leaves(nnx.state(params, nnx.Param) if isinstance(params, nnx.Module) else params, ""):
        if not isinstance(leaf, jax.Array | np.ndarray):
            raise CheckpointError(f"params: {name or 'the tree'} is a {type(leaf).__name__}, not an array", param="params")
        if name in found:
            raise CheckpointError(f"params: {name} is there twice", param="params")
        found[name] = leaf
    return found


def named_lora_arrays(params: Any) -> Arrays:
    """The same of a tree of LoRA's arrays: of an NNX module its LoRA parameters alone."""
    return named_arrays(nnx.state(params, nnx.LoRAParam) if isinstance(params, nnx.Module) else params)


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, nnx.Variable):
        yield path, tree.get_value()
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, _join(path, str(key)))
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _leaves(value, _join(path, str(number)))
    else:
        yield path, tree


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
