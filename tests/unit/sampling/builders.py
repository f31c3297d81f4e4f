"""Batches and a plain numpy reference for the sampler's tests."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.batch import SamplingBatch

NEUTRAL = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence": 0.0,
    "frequency": 0.0,
    "repetition": 1.0,
}


def make_batch(
    rows: int, *, slots: Any = None, suppress: Any = None, seeds: Any = 0, positions: Any = 0, bias: Any = True, **params: Any
):
    """A batch whose parameters are scalars or one value a row; flags follow from them."""

    def column(value: Any, dtype: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype), (rows,)).copy()

    values = {name: column(x, np.int32 if name == "top_k" else np.float32) for name, x in (NEUTRAL | params).items()}
    suppressed = np.full((rows, 3), -1, np.int32) if suppress is None else np.asarray(suppress, np.int32)
    key = np.stack([np.zeros(rows, np.uint32), column(seeds, np.uint32)], axis=1)
    truncated = (values["top_k"] > 0) | (values["top_p"] < 1) | (values["min_p"] > 0)
    penalized = (values["presence"] != 0) | (values["frequency"] != 0) | (values["repetition"] != 1)
    arrays = values | {
        "key": key,
        "position": column(positions, np.int32),
        "suppress": suppressed,
        "slot": np.arange(rows, dtype=np.int32) if slots is None else column(slots, np.int32),
        "any_random": np.asarray((values["temperature"] > 0).any()),
        "any_truncated": np.asarray(truncated.any()),
        "any_penalty": np.asarray(penalized.any()),
        "has_bias": column(bias, np.bool_),
        "any_suppressed": np.asarray((suppressed >= 0).any()),
        "any_logprobs": np.asarray(False),
    }
    return SamplingBatch(**{name: jnp.asarray(array) for name, array in arrays.items()})


def probabilities(
    logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """The distribution one row is drawn from, by sorting, in float64."""
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")
    weights = np.exp(scaled - scaled.max())
    if top_k:
        weights[order[top_k:]] = 0.0
    weights /= weights.sum()
    if top_p < 1.0:
        reached = np.cumsum(weights[order]) >= top_p
        weights[order[int(np.argmax(reached)) + 1 :]] = 0.0
    weights[weights < min_p * weights.max()] = 0.0
    return weights / weights.sum()


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
