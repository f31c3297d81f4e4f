"""Builds the parameters of a decoder on a mesh."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxserve.models.binding import Params
from jaxserve.models.checkpoint import read_json_object
from jaxserve.models.config import DecoderConfig
from jaxserve.models.quantization import Quantization, quantization_from_hf
from jaxserve.weights.check import check_tensors
from jaxserve.weights.checkpoint import Block, Tensors
from jaxserve.weights.dummy import dummy_params
from jaxserve.weights.finite import is_finite, not_finite_error
from jaxserve.weights.formats import LoadFormat, open_checkpoint
from jaxserve.weights.held import HeldTensors
from jaxserve.weights.jobs import Job, Progress, collect, list_jobs
from jaxserve.weights.manifest import require_manifest
from jaxserve.weights.packed import Packer
from jaxserve.weights.packing import Index, read_block
from jaxserve.weights.panels import read_panels, read_quantized_panels
from jaxserve.weights.quantized.layout import Dequantized, Layout
from jaxserve.weights.recheck import BlockSums, bounds_of
from pallas_kernels.matmul import PackedMatrix

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
    if load_format == "dummy":
        return dummy_params(config, mesh, dtype, seed=seed, packer=packer, progress=progress)
    jobs = list_jobs(config, mesh, dtype)
    directory = Path(model_dir)
    manifest = require_manifest(directory) if verify else None
    with open_checkpoint(directory, load_format) as checkpoint, ThreadPoolExecutor(READERS) as pool:
        if manifest is not None:
            manifest.check_names(checkpoint.shapes)
        layout = Layout.of(checkpoint.shapes, checkpoint.dtypes, _quantization(directory), jnp.dtype(dtype).name)
        check_tensors(config, [job.rule for job in jobs], layout.shapes, layout.dtypes)

        def read(job: Job) -> jax.Array | PackedMatrix:
            held = HeldTensors(checkpoint, None if manifest is None else manifest.check)
            return _read(job, Dequantized(held, layout), packer, sums)

        try:
            return collect(jobs, pool.map(read, jobs), progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # do not read the rest for nobody
            raise


def _quantization(directory: Path) -> Quantization | None:
    path = directory / "config.json"
    return quantization_from_hf(read_json_object(path)) if path.is_file() else None


def _read(job: Job, tensors: Tensors, packer: Packer | None, sums: BlockSums | None) -> jax.Array | PackedMatrix:
    """One parameter, as the engine is to hold it."""
    plain = jax.ShapeDtypeStruct(job.shape, job.dtype, sharding=job.sharding)
    target = plain if packer is None else packer.shape(job.rule.path, plain)
    packed = target if isinstance(target, PackedMatrix) else None
    if packed is not None and packed.scales is not None:
        return _read_quantized(job, tensors, packed, sums)
    place = plain if packed is None else packed.values
    path = job.rule.path if packed is None else (*job.rule.path, "values")

    def block(index: Index | None) -> Block:
        here = (slice(None),) * len(place.shape) if index is None else index
        with np.errstate(over="ignore", invalid="ignore"):  # told below, by the tensor's name
            if packed is not None and packed.form == "panels":
                read = read_panels(tensors, job.rule, job.shape, packed.split, job.dtype)
            else:
                read = read_block(tensors, job.rule, job.shape, here, job.dtype)
        if not is_finite(read):
            raise not_finite_error(tensors, job.rule, job.dtype)
        if sums is not None:
            sums.add(path, bounds_of(here, place.shape), read)
        return read

    array: jax.Array = jax.make_array_from_callback(place.shape, place.sharding, block)
    array.block_until_ready()  # the host's copy goes before the next parameter comes
    return array if packed is None else replace(packed, values=array)


def _read_quantized(job: Job, tensors: Tensors, target: PackedMatrix, sums: BlockSums | None) -> PackedMatrix:
    """One parameter in int8, from the numbers that are stored; `target` has its shapes and where it goes."""
    with np.errstate(invalid="ignore"):  # told below, by the tensor's name
        values, scales = read_quantized_panels(tensors, job.rule, job.shape, target.split)
    if not is_finite(scales):
        raise not_finite_error(tensors, job.rule, scales.dtype.name)

    def placed(name: str, block: Block) -> jax.Array:
        if sums is not None:
            sums.add((*job.rule.path, name), bounds_of((slice(None),), block.shape), block)
        return jax.make_array_from_callback(block.shape, target.values.sharding, lambda _: block)

    held = replace(target, values=placed("values", values), scales=placed("scales", scales))
    jax.block_until_ready(held.values)  # the host's copy goes before the next parameter comes
    return held
