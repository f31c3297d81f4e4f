"""Batches and a plain numpy reference for the sampler's tests."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.options import STANDARD, RowOptions

NEUTRAL = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": 0.0,
    "presence": 0.0,
    "frequency": 0.0,
    "repetition": 1.0,
    "masked": 0,
    "num_processed": -1,
}
WHOLE = ("top_k", "masked", "num_processed")  # numbers


def make_batch(
    rows: int,
    *,
    slots: Any = None,
    suppress: Any = None,
    seeds: Any = 0,
    positions: Any = 0,
    bias: Any = True,
    options: RowOptions = STANDARD,
    **params: Any,
):
    """A batch whose parameters are scalars or one value a row; flags follow from them."""

    def column(value: Any, dtype: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype), (rows,)).copy()

    values = {name: column(x, np.int32 if name in WHOLE else np.float32) for name, x in (NEUTRAL | params).items()}
    suppressed = np.full((rows, 1), -1, np.int32) if suppress is None else np.asarray(suppress, np.int32)
    key = np.stack([np.zeros(rows, np.uint32), column(seeds, np.uint32)], axis=1)
    words = np.tile(options.neutral, (rows, 1))
    for name, given in (values | {"key": key, "has_bias": column(bias, np.int32)}).items():
        options.column(words, name)[...] = given
    options.column(words, "suppress")[:, : suppressed.shape[1]] = suppressed
    return SamplingBatch(
        words=jnp.asarray(words),
        position=jnp.asarray(column(positions, np.int32)),
        slot=jnp.asarray(np.arange(rows, dtype=np.int32) if slots is None else column(slots, np.int32)),
        flags=tuple(map(jnp.asarray, options.flags(words, np.ones(rows, np.bool_)))),
        options=options,
    )


def mask_words(allowed: np.ndarray) -> Any:
    """Masks int32[R,ceil(C/32)] of bool[R,C]."""
    spare = -allowed.shape[1] % 32
    packed = np.packbits(np.pad(allowed, ((0, 0), (0, spare))), axis=1, bitorder="little")
    return jnp.asarray(packed.view(np.int32))


def probabilities(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    top_n_sigma: float = 0.0,
    typical_p: float = 1.0,
) -> np.ndarray:
    """The distribution one row is drawn from, by sorting, in float64."""
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")
    weights: np.ndarray = np.exp(scaled - scaled.max())
    if top_k:
        weights[order[top_k:]] = 0.0
    weights /= weights.sum()
    if top_p < 1.0:
        reached = np.cumsum(weights[order]) >= top_p
        weights[order[int(np.argmax(reached)) + 1 :]] = 0.0
    weights[weights < min_p * weights.max()] = 0.0
    if top_n_sigma > 0.0:
        finite = scaled[np.isfinite(scaled)]
        weights[scaled < finite.max() - top_n_sigma * finite.std()] = 0.0
    weights /= weights.sum()
    if typical_p < 1.0:
        information = np.where(weights > 0, -np.log(np.maximum(weights, 1e-300)), np.inf)
        entropy = (weights[weights > 0] * information[weights > 0]).sum()
        order = np.argsort(np.abs(information - entropy), kind="stable")
        reached = np.cumsum(weights[order]) >= typical_p
        weights[order[int(np.argmax(reached)) + 1 :]] = 0.0
    weights /= weights.sum()
    return weights


def penalized(
    logits: np.ndarray, output: list[int], prompt: list[int], presence: float, frequency: float, repetition: float
) -> np.ndarray:
    """Logits of one row after penalties, by a plain loop."""
    result = logits.astype(np.float64).copy()
    for token in range(len(logits)):
        if token in output or token in prompt:
            result[token] = result[token] / repetition if result[token] > 0 else result[token] * repetition
        result[token] -= frequency * output.count(token)
        if token in output:
            result[token] -= presence
    return result
