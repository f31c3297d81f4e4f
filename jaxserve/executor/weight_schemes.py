"""What a model's parameters are held in, as text: the same checkpoint makes other keys and values where it is held otherwise."""

from __future__ import annotations

import hashlib
from typing import Any

import jax

from pallas_kernels.matmul import Matrix


def describe_weights(params: Any) -> str:
    """Sixteen hex digits over every parameter's name, and the scheme of its numbers or their dtype.

    A matrix of FP8 numbers that are multiplied as FP8 is told from one whose numbers are widened first, and from one that was
    dequantized when it was loaded. Layouts do not count: they change no number.

    Args:
        params: a tree of the model's parameters, arrays or their shapes.
    """
    leaves = jax.tree.leaves_with_path(params, is_leaf=_is_matrix)
    lines = sorted(f"{jax.tree_util.keystr(path)} {_held_in(leaf)}\n" for path, leaf in leaves)
    return hashlib.blake2b("".join(lines).encode(), digest_size=8).hexdigest()


def _is_matrix(leaf: Any) -> bool:
    return isinstance(leaf, Matrix)


def _held_in(leaf: Any) -> str:
    return repr(leaf.scheme) if _is_matrix(leaf) and leaf.scales is not None else str(leaf.dtype)
