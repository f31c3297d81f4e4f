"""Builds the parameters of a decoder on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import weight_rules
from jaxserve.models.rules import WeightRule
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.check import check_tensors
from jaxserve.weights.dummy import DummyWeights
from jaxserve.weights.packing import Index, read_block
from jaxserve.weights.safetensors import Block, SafetensorsCheckpoint

Progress = Callable[[int, int], None]
READERS = 4
"""Threads that read: enough to keep a disk busy while others transpose and cast, few enough to bound host memory."""


def load_params(
    model_dir: str | Path,
    config: DecoderConfig,
    mesh: Mesh,
    dtype: DTypeLike,
    *,
    load_format: Literal["safetensors", "dummy"] = "safetensors",
    seed: int = 0,
    progress: Progress | None = None,
) -> Params:
    """The parameters of a decoder, each packed for and placed on the mesh's devices.

    From safetensors, every device's part is read on its own: the host never holds more than a few tensors.

    Args:
        model_dir: checkpoint directory; not looked at for dummy weights.
        config: the decoder.
        mesh: from `sharding.make_mesh`.
        dtype: of the parameters, whatever the checkpoint's.
        load_format: where the numbers come from.
        seed: of dummy weights.
        progress: called in this thread with (parameters done, parameters in all) after each.

    Returns:
        Nested dict of arrays in the tree of `abstract_params(config, dtype, shards)`.

    Raises:
        CheckpointError: a checkpoint that is missing, damaged, or does not fit the decoder.
        ConfigError: a decoder that cannot be divided over the mesh.
    """
    name = jnp.dtype(dtype).name
    jobs = _jobs(config, mesh, name)
    if load_format == "dummy":
        dummy = DummyWeights(seed, name)
        return _collect(jobs, (dummy.make(*job) for job in jobs), progress)
    with SafetensorsCheckpoint(Path(model_dir)) as checkpoint, ThreadPoolExecutor(READERS) as pool:
        check_tensors(config, [job.rule for job in jobs], checkpoint.shapes)
        try:
            return _collect(jobs, pool.map(lambda job: _read(checkpoint, job, name), jobs), progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # do not read the rest for nobody
            raise


class _Job(NamedTuple):
    """One parameter to make."""

    rule: WeightRule
    shape: tuple[int, ...]
    sharding: NamedSharding


def _jobs(config: DecoderConfig, mesh: Mesh, dtype: str) -> list[_Job]:
    tree = placed_params(config, mesh, dtype)
    leaves = [(rule, _leaf(tree, rule.path)) for rule in weight_rules(config)]
    return [_Job(rule, leaf.shape, leaf.sharding) for rule, leaf in leaves]


def _leaf(tree: Params, path: tuple[str, ...]) -> Any:
    return reduce(lambda node, key: node[key], path, tree)


def _read(checkpoint: SafetensorsCheckpoint, job: _Job, dtype: str) -> jax.Array:
    def block(index: Index | None) -> Block:
        whole = (slice(None),) * len(job.shape)
        return read_block(checkpoint, job.rule, job.shape, whole if index is None else index, dtype)

    return jax.make_array_from_callback(job.shape, job.sharding, block)


def _collect(jobs: list[_Job], arrays: Iterable[jax.Array], progress: Progress | None) -> Params:
    tree: Params = {}
    for done, (job, array) in enumerate(zip(jobs, arrays, strict=True), start=1):
        *parents, last = job.rule.path
        reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[last] = array
        if progress is not None:
            progress(done, len(jobs))
    return tree
