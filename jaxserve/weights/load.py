"""Builds the parameters of a decoder on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxserve.models.binding import Params
from jaxserve.models.checkpoint import read_json_object
from jaxserve.models.config import DecoderConfig
from jaxserve.models.quantisation import Quantisation, quantisation_from_hf
from jaxserve.models.registry import weight_rules
from jaxserve.models.rules import WeightRule
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.check import check_tensors
from jaxserve.weights.checkpoint import Block, Tensors
from jaxserve.weights.dummy import DummyWeights
from jaxserve.weights.finite import is_finite, not_finite_error
from jaxserve.weights.formats import LoadFormat, open_checkpoint
from jaxserve.weights.held import HeldTensors
from jaxserve.weights.manifest import require_manifest
from jaxserve.weights.packed import Packer
from jaxserve.weights.packing import Index, read_block
from jaxserve.weights.quantised.layout import Dequantised, Layout
from jaxserve.weights.recheck import BlockSums, bounds_of
from pallas_kernels.matmul import PackedMatrix

Progress = Callable[[int, int], None]
READERS = 4
"""Parameters read at a time: enough to keep a disk busy while others are transposed and cast, few enough to bound host memory."""


def load_params(
    model_dir: str | Path,
    config: DecoderConfig,
    mesh: Mesh,
    dtype: DTypeLike,
    *,
    load_format: LoadFormat = "auto",
    seed: int = 0,
    verify: bool = False,
    sums: BlockSums | None = None,
    packer: Packer | None = None,
    progress: Progress | None = None,
) -> Params:
    """The parameters of a decoder, each packed for and placed on the mesh's devices.

    From a checkpoint, reading, packing and copying to devices go on at the same time for `READERS` parameters, and the host
    holds those and no more.

    Args:
        model_dir: checkpoint directory; not looked at for dummy weights.
        config: the decoder.
        mesh: from `sharding.make_mesh`.
        dtype: of the parameters, whatever the checkpoint's.
        load_format: where the numbers come from; "auto": from whatever the directory has.
        seed: of dummy weights.
        verify: whether every tensor is compared with the checksum that the directory's manifest has of it.
        sums: gets a checksum of every device's block, unless the weights are dummies; None for none.
        packer: packs each parameter as soon as it is there; None leaves all plain.
        progress: called in this thread with (bytes done, bytes in all), at the start and after each parameter.

    Returns:
        Nested dict of arrays in the tree of `abstract_params(config, dtype, shards)`, or what the packer makes of them.

    Raises:
        CheckpointError: a checkpoint that is missing, damaged, does not fit the decoder, or has weights that are not finite;
            `verify` without a manifest, or a tensor that is not the manifest's.
        ConfigError: a decoder that cannot be divided over the mesh.
    """
    jobs = _jobs(config, mesh, dtype)
    if load_format == "dummy":
        makers: dict[str, DummyWeights] = {job.dtype: DummyWeights(seed, job.dtype) for job in jobs}
        made = ((job, makers[job.dtype].make(job.rule, job.shape, job.sharding)) for job in jobs)
        return _collect(jobs, (_held(job, array, packer, None) for job, array in made), progress)
    directory = Path(model_dir)
    manifest = require_manifest(directory) if verify else None
    with open_checkpoint(directory, load_format) as checkpoint, ThreadPoolExecutor(READERS) as pool:
        if manifest is not None:
            manifest.check_names(checkpoint.shapes)
        layout = Layout.of(checkpoint.shapes, checkpoint.dtypes, _quantisation(directory), jnp.dtype(dtype).name)
        check_tensors(config, [job.rule for job in jobs], layout.shapes, layout.dtypes)

        def read(job: _Job) -> jax.Array | PackedMatrix:
            held = HeldTensors(checkpoint, None if manifest is None else manifest.check)
            return _held(job, _read(job, Dequantised(held, layout), sums), packer, sums)

        try:
            return _collect(jobs, pool.map(read, jobs), progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # do not read the rest for nobody
            raise


class _Job(NamedTuple):
    """One parameter to make."""

    rule: WeightRule
    shape: tuple[int, ...]
    dtype: str
    sharding: NamedSharding


def _jobs(config: DecoderConfig, mesh: Mesh, dtype: DTypeLike) -> list[_Job]:
    tree = placed_params(config, mesh, dtype)
    leaves = [(rule, _leaf(tree, rule.path)) for rule in weight_rules(config)]
    return [_Job(rule, leaf.shape, leaf.dtype.name, leaf.sharding) for rule, leaf in leaves]


def _leaf(tree: Params, path: tuple[str, ...]) -> Any:
    return reduce(lambda node, key: node[key], path, tree)


def _quantisation(directory: Path) -> Quantisation | None:
    path = directory / "config.json"
    return quantisation_from_hf(read_json_object(path)) if path.is_file() else None


def _read(job: _Job, tensors: Tensors, sums: BlockSums | None) -> jax.Array:
    def block(index: Index | None) -> Block:
        here = (slice(None),) * len(job.shape) if index is None else index
        with np.errstate(over="ignore", invalid="ignore"):  # told below, by the tensor's name
            packed = read_block(tensors, job.rule, job.shape, here, job.dtype)
        if not is_finite(packed):
            raise not_finite_error(tensors, job.rule, job.dtype)
        if sums is not None:
            sums.add(job.rule.path, bounds_of(here, job.shape), packed)
        return packed

    array: jax.Array = jax.make_array_from_callback(job.shape, job.sharding, block)
    return array.block_until_ready()  # the host's copy goes before the next parameter comes


def _held(job: _Job, array: jax.Array, packer: Packer | None, sums: BlockSums | None) -> jax.Array | PackedMatrix:
    """A parameter as the engine is to hold it; `sums` gets the checksum of one that is packed."""
    if packer is None:
        return array
    held = packer.pack(job.rule.path, array)
    jax.block_until_ready(held)
    if sums is not None and isinstance(held, PackedMatrix):
        values = np.asarray(held.values)
        sums.add((*job.rule.path, "values"), bounds_of((slice(None),) * values.ndim, values.shape), values)
    return held


def _collect(jobs: list[_Job], arrays: Iterable[jax.Array | PackedMatrix], progress: Progress | None) -> Params:
    tree: Params = {}
    done, total = 0, sum(_bytes(job) for job in jobs)
    if progress is not None:
        progress(done, total)
    for job, array in zip(jobs, arrays, strict=True):
        *parents, last = job.rule.path
        reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[last] = array
        done += _bytes(job)
        if progress is not None:
            progress(done, total)
    return tree


def _bytes(job: _Job) -> int:
    return np.dtype(job.dtype).itemsize * prod(job.shape)
