"""Rotary position embedding (Su et al. 2021) and the ways its frequencies are scaled for longer contexts.

The rotation itself is an operation, `pallas_kernels.rotate_and_write`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxserve.models.positions import QueryScale, RopeConfig
from pallas_kernels.rotate_and_write import Rotation, rotate

Frequencies = npt.NDArray[np.float32]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Frequencies:
    """Radians a position for each pair of rotated dimensions: float32[D/2], or fewer if only some of the D are rotated.

    Computed in float32 step by step as the checkpoints' own code does: at position 100,000 a rounding difference in a
    frequency is a visible angle.
    """
    if rope.kind == "proportional":
        return _proportional(rope, head_dim)
    head_dim = rope.rotated_dims or head_dim
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    periods = np.power(np.float32(rope.theta), exponents)
    inverse: Frequencies = np.float32(1.0) / periods
    match rope.kind:
        case "default" | "dynamic":
            return inverse
        case "linear":
            return np.divide(inverse, np.float32(rope.factor))
        case "llama3":
            return _llama3(rope, inverse)
        case "yarn":
            return _yarn(rope, periods, head_dim)
        case "longrope":  # LongRoPE (Ding et al. 2024)
            factors = np.asarray(rope.long_factors if rope.extended else rope.short_factors, np.float32)
            divided: Frequencies = np.float32(1.0) / (factors * periods)
            return divided


def rotation(rope: RopeConfig, head_dim: int, positions: jax.Array) -> Rotation:
    """Cosines and sines for positions[T] int32."""
    angles = positions.astype(jnp.float32)[:, None] * inverse_frequencies(rope, head_dim)[None, :]
    rotated = Rotation(jnp.cos(angles) * rope.attention_factor, jnp.sin(angles) * rope.attention_factor)
    # Without the barrier XLA computes them again in every layer, for every head. On a GPU that costs less than another kernel.
    once: Rotation = jax.lax.platform_dependent(rotated, cpu=jax.lax.optimization_barrier, default=lambda every: every)
    return once


def rotate_pairs(x: jax.Array, rope: Rotation) -> jax.Array:
    """Rotate queries or keys x[T, heads, D] whose dimensions 2i and 2i + 1 are a pair, as DeepSeek's checkpoints have them.

    The result has their order of dimensions from `deinterleave`.
    """
    return rotate(deinterleave(x, rope), rope)


def deinterleave(x: jax.Array, rope: Rotation) -> jax.Array:
    """x[T, heads, D] with all first members of pairs that `rope` turns, then all second ones: an order that scores do not see."""
    rotated, rest = jnp.split(x, (2 * rope.cos.shape[-1],), axis=-1)
    pairs = rotated.reshape(*rotated.shape[:-1], -1, 2)
    return jnp.concatenate([pairs[..., 0], pairs[..., 1], rest], axis=-1)


def query_factors(scale: QueryScale, positions: jax.Array) -> jax.Array:
    """What queries at positions[T] int32 are multiplied by: float32[T]."""
    periods = ((positions + scale.first) // scale.period).astype(jnp.float32)
    return 1 + scale.beta * jnp.log1p(periods)


def _proportional(rope: RopeConfig, head_dim: int) -> Frequencies:
    """Gemma 4 (2026): of all pairs of a head those that would rotate fastest do, and the others know no positions."""
    rotated = head_dim if rope.rotated_dims is None else rope.rotated_dims
    exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(head_dim)
    inverse = np.float32(1.0) / np.power(np.float32(rope.theta), exponents)
    return np.pad(inverse / np.float32(rope.factor), (0, (head_dim - rotated) // 2))


def _llama3(rope: RopeConfig, inverse: Frequencies) -> Frequencies:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between interpolated smoothly."""
    low, high, factor = (np.float32(v) for v in (rope.low_freq_factor, rope.high_freq_factor, rope.factor))
    # Rotations within the original context: below `low` the wavelength is long, above `high` it is short.
    rotations = np.float32(rope.original_max_position_embeddings) * inverse / np.float32(2 * math.pi)
    kept = np.clip((rotations - low) / (high - low), np.float32(0), np.float32(1))
    smoothed: Frequencies = (np.float32(1) - kept) * (inverse / factor) + kept * inverse
    return smoothed


def _yarn(rope: RopeConfig, periods: Frequencies, head_dim: int) -> Frequencies:
    """YaRN (Peng et al. 2023): dimensions that rotate often are kept, rare ones interpolated, a linear ramp between."""

    def dimension(rotations: float) -> float:
        wavelength = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp is a step
    steps = np.arange(head_dim // 2, dtype=np.float32)
    interpolated = np.clip((steps - np.float32(low)) / np.float32(high - low), np.float32(0), np.float32(1))
    stretched = np.float32(1) / (np.float32(rope.factor) * periods)
    inverse: Frequencies = stretched * interpolated + (np.float32(1) / periods) * (np.float32(1) - interpolated)
    return inverse
