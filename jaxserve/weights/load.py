"""Builds the parameters of a decoder on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxserve.jax_settings import engine_settings, pin_thread
from jaxserve.models.binding import Params
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.quantization_methods import Quantization
from jaxserve.weights.check import check_tensors, without_zero_biases
from jaxserve.weights.checkpoint import Block, Checkpoint, whole
from jaxserve.weights.dummy import dummy_params
from jaxserve.weights.finite import is_finite, not_finite_error
from jaxserve.weights.formats import LoadFormat, StoredFormat, open_checkpoint
from jaxserve.weights.held import Check, HeldTensors
from jaxserve.weights.jobs import LoadProgress, TensorRead, collect, list_jobs
from jaxserve.weights.manifest import Manifest, require_manifest
from jaxserve.weights.packed import Packer, pack_as
from jaxserve.weights.packing import Index, read_block
from jaxserve.weights.panels import read_arranged
from jaxserve.weights.quantized.cache_scales import warn_of_cache_scales
from jaxserve.weights.quantized.layout import Dequantized, Layout
from jaxserve.weights.recheck import BlockSums, bounds_of
from jaxserve.weights.stacked_experts import with_own_experts
from jaxserve.weights.stored_blocks import read_stored
from jaxserve.weights.tensor_error import naming_files
from pallas_kernels.matmul import CodePanels, Matrix, Panels, Weight, Words

READERS = 4
"""Parameters read at a time: enough to keep a disk busy while others are transposed and cast, few enough to bound host memory."""


@engine_settings()
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
    progress: LoadProgress | None = None,
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
    _walk_devices(mesh)
    with (
        reading(Path(model_dir), config, jobs, dtype, load_format, verify=verify, sums=sums, packer=packer) as read,
        ThreadPoolExecutor(READERS, initializer=pin_thread) as pool,
    ):
        try:
            return collect(jobs, pool.map(read, jobs), progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # do not read the rest for nobody
            raise


def _walk_devices(mesh: Mesh) -> None:
    """Let this thread be the first of the process to walk through a list of devices, as jax does to place an array.

    Where several threads are, jaxlib (0.11.2) makes the type of its iterator more than once, and crashes.
    """
    jax.make_array_from_callback((), NamedSharding(mesh, PartitionSpec()), lambda _: np.zeros((), np.int8))


@contextmanager
def reading(
    directory: Path,
    config: DecoderConfig,
    jobs: Sequence[TensorRead],
    dtype: DTypeLike,
    load_format: StoredFormat,
    *,
    verify: bool = False,
    sums: BlockSums | None = None,
    packer: Packer | None = None,
) -> Iterator[Callable[[TensorRead], Weight]]:
    """What reads one parameter of a checkpoint that is open meanwhile, whose names and shapes fit; see `load_params`."""
    manifest = require_manifest(directory) if verify else None
    with open_checkpoint(directory, load_format) as stored, naming_files(stored):
        if manifest is not None:
            manifest.check_names(stored.shapes)
        checkpoint = with_own_experts(stored, [job.rule for job in jobs])
        check = None if manifest is None else _checking(manifest, stored, checkpoint)
        layout = Layout.of(checkpoint.shapes, checkpoint.dtypes, _quantization(directory), jnp.dtype(dtype).name)
        rules = [job.rule for job in jobs]
        check_tensors(config, rules, without_zero_biases(checkpoint, rules, layout.shapes), layout.dtypes)
        warn_of_cache_scales(checkpoint, checkpoint.shapes.keys() - layout.shapes.keys())

        def read(job: TensorRead) -> Weight:
            held = HeldTensors(checkpoint, check)
            return _read(job, Dequantized(held, layout), packer, sums)

        yield read


def _checking(manifest: Manifest, stored: Checkpoint, checkpoint: Checkpoint) -> Check:
    """What compares tensors with a manifest as they are read; those that are read in parts only, at once."""
    for name in stored.shapes.keys() - checkpoint.shapes.keys():
        manifest.check(name, stored.read(name, whole(stored.shapes[name])))

    def check(name: str, tensor: Block) -> None:
        if name in manifest.tensors:
            manifest.check(name, tensor)

    return check


def read_from(tensors: Checkpoint, job: TensorRead, packer: Packer) -> Weight:
    """One parameter of tensors that are not quantized, and were checked; see `load_params`."""
    return _read(job, Dequantized(HeldTensors(tensors), Layout(tensors.shapes, tensors.dtypes, {})), packer, None)


def load_parameter(model_dir: Path, config: DecoderConfig, mesh: Mesh, dtype: DTypeLike, path: tuple[str, ...]) -> jax.Array:
    """One parameter of a decoder, as it is, for another that shares it. Raises as `load_params`."""
    (job,) = [job for job in list_jobs(config, mesh, dtype) if job.rule.path == path]
    with open_checkpoint(model_dir, "auto") as checkpoint, naming_files(checkpoint):
        layout = Layout.of(checkpoint.shapes, checkpoint.dtypes, _quantization(model_dir), jnp.dtype(dtype).name)
        return _read_plain(job, Dequantized(HeldTensors(checkpoint, None), layout), None)


def _quantization(directory: Path) -> Quantization | None:
    return quantization_from_hf(read_hf_config(directory)) if (directory / "config.json").is_file() else None


def _read(job: TensorRead, tensors: Dequantized, packer: Packer | None, sums: BlockSums | None) -> Weight:
    plain = jax.ShapeDtypeStruct(job.shape, job.dtype, sharding=job.sharding)
    target = None if packer is None else packer.matrix(job.rule.path, plain)
    if target is None:
        return _read_plain(job, tensors, sums)
    assert packer is not None
    stored = packer.holds_stored(job.rule.path, plain)
    if isinstance(target.layout, Panels | CodePanels) or (isinstance(target.layout, Words) and (stored or target.stacked)):
        held = _read_arranged(job, tensors, target, stored)
    elif stored:
        held = read_stored(tensors, job.rule, target, job.dtype)
    else:
        numbers = job if target.scales is None else job._replace(dtype="float32")
        held = pack_as(target, _read_plain(numbers, tensors, None))
    jax.block_until_ready(held)  # the host's copy goes before the next parameter comes
    if sums is not None:
        sums.add_held(job.rule.path, held)
    return held


def _read_plain(job: TensorRead, tensors: Dequantized, sums: BlockSums | None) -> jax.Array:
    """One parameter as it is, each device's block straight to the device."""

    def block(index: Index | None) -> Block:
        here = (slice(None),) * len(job.shape) if index is None else index
        with np.errstate(over="ignore", invalid="ignore"):  # told below, by the tensor's name
            read = read_block(tensors, job.rule, job.shape, here, job.dtype)
        if not is_finite(read):
            raise not_finite_error(tensors, job.rule, job.dtype)
        if sums is not None:
            sums.add(job.rule.path, bounds_of(here, job.shape), read)
        return read

    array: jax.Array = jax.make_array_from_callback(job.shape, job.sharding, block)
    array.block_until_ready()  # the host's copy goes before the next parameter comes
    return array


def _part_of(block: Block) -> Callable[[Index | None], Block]:
    """A device's part of an array of the host."""
    return lambda index: block if index is None else block[index]


def _read_arranged(job: TensorRead, tensors: Dequantized, target: Matrix, stored: bool) -> Matrix:
    """One matrix, arranged and perhaps rounded by the host on its way to its devices, or `stored` as it is held."""
    with np.errstate(over="ignore", invalid="ignore"):  # told below, by the tensor's name
        read = read_arranged(tensors, job.rule, target, tensors if stored else None)
    last = jax.tree.leaves(read)[-1]  # scales, if it is rounded
    if not is_finite(last):
        raise not_finite_error(tensors, job.rule, last.dtype.name)
    held: Matrix = jax.tree.map(
        lambda part, block: jax.make_array_from_callback(part.shape, part.sharding, _part_of(block)), target, read
    )
    return held
