"""Looks at arrays where they are: whether all of them are numbers, and what tells them from others."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.weights.check import FLOATS
from jaxserve.weights.checkpoint import Block
from jaxserve.weights.finite import is_finite
from jaxserve.weights.live.trees import Arrays
from jaxserve.weights.live.views import View

_LISTED = 12
_MULTIPLIER = 0x9E37_79B1
_STRIP = 2**17  # elements that the host looks at together, in its caches


def check_arrays(arrays: Arrays, views: Iterable[View], ignored: Collection[str], *, partial: bool) -> None:
    """Raise CheckpointError unless a tree has exactly the arrays that views are of, in their shapes, and in floating point.

    Args:
        arrays: the tree.
        views: of every tensor that the decoder needs.
        ignored: names that it may have beyond them.
        partial: whether some may be missing.
    """
    expected = {view.name: view.shape for view in views}
    missing = [] if partial else [f"{name} {list(shape)}" for name, shape in expected.items() if name not in arrays]
    unexpected = [f"{n} {list(a.shape)}" for n, a in arrays.items() if n not in expected and n not in ignored]
    here = [name for name in expected if name in arrays]
    wrong = [f"{n} is {list(arrays[n].shape)}, needs {list(expected[n])}" for n in here if tuple(arrays[n].shape) != expected[n]]
    odd = [f"{n} ({arrays[n].dtype})" for n in here if str(arrays[n].dtype) not in FLOATS]
    gone = [n for n in here if isinstance(arrays[n], jax.Array) and arrays[n].is_deleted()]
    kinds = {
        "missing": missing,
        "unexpected": unexpected,
        "of the wrong shape": wrong,
        f"not {', '.join(FLOATS)}": odd,
        "deleted or donated": gone,
    }
    problems = [f"{len(found)} {kind}: {_listed(found)}" for kind, found in kinds.items() if found]
    if partial and not here:
        problems.append("none of the model's tensors is there")
    if problems:
        raise CheckpointError(f"the params do not fit: {'; '.join(problems)}", param="params")


def _listed(lines: list[str]) -> str:
    return ", ".join(lines[:_LISTED]) + (f" and {len(lines) - _LISTED} more" if len(lines) > _LISTED else "")


def look_at(arrays: Arrays, dtype: str) -> dict[str, int]:
    """A sum of every array's bits, made where it is: on its devices, or by the host.

    Raises CheckpointError for an array that is not all numbers, or has some that `dtype` has not.
    """
    looked = {
        name: _look_here(array, jnp.dtype(dtype)) if isinstance(array, np.ndarray) else _look(array, dtype)
        for name, array in arrays.items()
    }
    found = jax.device_get(looked)
    bad = [(name, int(wrong)) for name, (wrong, _, _) in found.items() if wrong]
    if bad:
        told = []
        for name, count in bad[:_LISTED]:
            place = tuple(int(i) for i in np.unravel_index(int(found[name][1]), arrays[name].shape))
            told.append(f"{name} has {count} in {arrays[name].size}, the first at {list(place)}")
        raise CheckpointError(f"params: numbers that are NaN, infinite or too large for {dtype}: {_listed(told)}", param="params")
    return {name: int(bits) for name, (_, _, bits) in found.items()}


@partial(jax.jit, static_argnames=("dtype",))
def _look(array: jax.Array, dtype: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How many elements are no numbers in a dtype, the first one's place, and a sum of the bits that depends on their places."""
    wrong = ~jnp.isfinite(array.astype(dtype)).reshape(-1)
    place = jnp.zeros(array.shape, jnp.uint32)
    for axis, size in enumerate(array.shape):
        place = place * jnp.uint32(size) + lax.broadcasted_iota(jnp.uint32, array.shape, axis)
    bits = lax.bitcast_convert_type(array, jnp.dtype(f"uint{8 * array.dtype.itemsize}")).astype(jnp.uint32)
    return wrong.sum(), jnp.argmax(wrong), jnp.sum(bits * (place * jnp.uint32(_MULTIPLIER) | jnp.uint32(1)))


def _look_here(array: Block, dtype: np.dtype) -> tuple[int, int, int]:
    """The same of an array in the host's memory, without a copy of it: so that devices go on with what they do."""
    flat = array.reshape(-1)
    words = flat.view(f"uint{8 * flat.itemsize}")
    places = np.arange(_STRIP, dtype=np.uint32)
    wrong, first, bits = 0, 0, 0
    for start in range(0, flat.size, _STRIP):
        with np.errstate(over="ignore"):
            strip = flat[start : start + _STRIP].astype(dtype)
        if not is_finite(strip):
            bad = ~np.isfinite(strip.astype(np.float32))
            first = first if wrong else start + int(bad.argmax())
            wrong += int(bad.sum())
        factors = (places[: strip.size] + np.uint32(start % 2**32)) * np.uint32(_MULTIPLIER) | np.uint32(1)
        bits += int((words[start : start + _STRIP].astype(np.uint32) * factors).sum(dtype=np.uint32))
    return wrong, first, bits % 2**32


def fingerprint_of(config: DecoderConfig, sums: dict[str, int]) -> str:
    """Sixteen hex digits, as `fingerprint.model_fingerprint` has them of a directory, from what `look_at` gives."""
    state = hashlib.blake2b(repr(config).encode(), digest_size=8)
    for name in sorted(sums):
        state.update(f"{name} {sums[name]} ".encode())
    return state.hexdigest()
