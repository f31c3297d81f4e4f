"""Seeded random weights for any decoder, made on the devices that will hold them.

Each tensor of the rules gets its own key, so the model a seed gives does not depend on the number of devices.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights.device_packing import Parts, pack_sources
from jaxserve.weights.jobs import LoadProgress, collect, list_jobs
from jaxserve.weights.packed import Packer
from jaxserve.weights.packing import Index, aligned_zeros

Shapes = tuple[tuple[int, ...], ...]
Fill = Callable[[npt.NDArray[np.uint32]], jax.Array]


def dummy_params(
    config: DecoderConfig,
    mesh: Mesh,
    dtype: DTypeLike,
    *,
    seed: int = 0,
    packer: Packer | None = None,
    progress: LoadProgress | None = None,
) -> Params:
    """The parameters of a decoder from a seed; see `load.load_params`. Raises ConfigError for a mesh that does not divide it."""
    jobs = list_jobs(config, mesh, dtype)
    makers = {name: DummyWeights(seed, name) for name in {job.dtype for job in jobs}}
    made = ((job, makers[job.dtype].make(job.rule, job.shape, job.sharding)) for job in jobs)
    held = (array if packer is None else packer.pack(job.rule.path, array) for job, array in made)
    placed = held if mesh.devices.flat[0].platform != "cpu" else (jax.tree.map(_as_loaded, parameter) for parameter in held)
    return collect(jobs, map(jax.block_until_ready, placed), progress)


def _as_loaded(array: jax.Array) -> jax.Array:
    """The same in memory as loaded weights have it: numpy asks Linux for huge pages, which are read faster than small ones."""

    def block(index: Index | None) -> npt.NDArray[Any]:
        part = np.asarray(array)[... if index is None else index]
        out = aligned_zeros(part.shape, part.dtype)
        out[...] = part
        return out

    return jax.make_array_from_callback(array.shape, array.sharding, block)


class DummyWeights:
    """Makes the parameters of a decoder from a seed.

    Matrices are uniform with variance 1 / inputs, which keeps activations and logits near unit size at any depth;
    biases are uniform with a deviation of 0.02; scales of norms are one.
    """

    def __init__(self, seed: int, dtype: str) -> None:
        self._seed = seed
        self._dtype = jnp.dtype(dtype)
        self._programs: dict[tuple[Shapes, Parts, Packing, tuple[int, ...], bool], Fill] = {}

    def make(self, rule: WeightRule, shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
        one = rule if rule.stack is None else rule.member(0)
        sources = tuple(source.shape for source in one.sources)
        ones = rule.path[-1] == "scale"
        columns = rule.packing is Packing.COLUMNS
        parts = tuple(source.parts(shape[-2]) for source in one.sources) if columns else ()
        signature = (sources, parts, rule.packing, shape, ones)
        if signature not in self._programs:  # one compilation for the same parameter of all layers
            each = shape if rule.stack is None else shape[1:]
            fill = partial(_fill, sources=sources, parts=parts, packing=rule.packing, shape=each, ones=ones, dtype=self._dtype)
            self._programs[signature] = jax.jit(fill if rule.stack is None else jax.vmap(fill), out_shardings=sharding)
        keys = np.array([_key(self._seed, source) for source in rule.sources], np.uint32)
        return self._programs[signature](keys if rule.stack is None else keys.reshape(rule.stack, -1))


def _key(seed: int, source: Source) -> int:
    part = f" {source.first_row}" if source.first_row else ""
    part += "" if source.expert is None else f" of expert {source.expert}"
    return zlib.crc32(f"{seed} {source.name}{part}".encode())


def _fill(
    keys: jax.Array,
    *,
    sources: Shapes,
    parts: Parts,
    packing: Packing,
    shape: tuple[int, ...],
    ones: bool,
    dtype: jnp.dtype,
) -> jax.Array:
    if ones:
        return jnp.ones(shape, dtype)
    tensors = [_tensor(keys[i], size, dtype) for i, size in enumerate(sources)]
    return pack_sources(tensors, packing, parts, shape)


def _tensor(key: jax.Array, size: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Uniform numbers, each a hash of its own place and the key: 50 times faster on a CPU than jax.random."""
    place = jnp.zeros(size, jnp.uint32)
    for axis in range(len(size)):
        place = place * jnp.uint32(size[axis]) + jax.lax.broadcasted_iota(jnp.uint32, size, axis)
    bits = _mix(_mix(place) ^ key)
    deviation = size[-1] ** -0.5 if len(size) > 1 else 0.02
    unit = (bits >> 8).astype(jnp.float32) * 2.0**-23 - 1.0  # in [-1, 1), with a deviation of 3 ** -0.5
    return (unit * (3**0.5 * deviation)).astype(dtype)


def _mix(x: jax.Array) -> jax.Array:
    """A bijective hash of uint32 with low bias (the constants are those of Wellons's lowbias32)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
