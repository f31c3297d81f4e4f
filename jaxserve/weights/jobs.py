"""The parameters of a decoder as things to make, one after another or several at a time, wherever their numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import weight_rules
from jaxserve.models.rules import WeightRule
from jaxserve.weights.abstract import placed_params
from pallas_kernels.matmul import Weight

LoadProgress = Callable[[int, int], None]
"""Told of bytes done and bytes in all, at the start and after each parameter."""


class TensorRead(NamedTuple):
    rule: WeightRule
    shape: tuple[int, ...]
    dtype: str
    sharding: NamedSharding

    @property
    def bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * prod(self.shape)


def list_jobs(config: DecoderConfig, mesh: Mesh, dtype: DTypeLike) -> list[TensorRead]:
    """All parameters of a decoder. Raises ConfigError for one that cannot be divided over the mesh."""
    tree = placed_params(config, mesh, dtype)
    leaves = [(rule, _leaf(tree, rule.path)) for rule in weight_rules(config)]
    return [TensorRead(rule, leaf.shape, leaf.dtype.name, leaf.sharding) for rule, leaf in leaves]


def collect(jobs: list[TensorRead], arrays: Iterable[Weight], progress: LoadProgress | None) -> Params:
    tree: Params = {}
    done, total = 0, sum(job.bytes for job in jobs)
    if progress is not None:
        progress(done, total)
    for job, array in zip(jobs, arrays, strict=True):
        *parents, last = job.rule.path
        reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[last] = array
        done += job.bytes
        if progress is not None:
            progress(done, total)
    return tree


def _leaf(tree: Params, path: tuple[str, ...]) -> Any:
    return reduce(lambda node, key: node[key], path, tree)
