"""Weights on their way into an engine: checked as a whole first, then made parameter by parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jax.sharding import Mesh

from jaxserve.jax_settings import engine_settings
from jaxserve.models.config import DecoderConfig
from jaxserve.weights.formats import StoredFormat
from jaxserve.weights.jobs import TensorRead, list_jobs
from jaxserve.weights.live.convert import Converter, complete_rules
from jaxserve.weights.live.disk import DiskWeights
from jaxserve.weights.live.host import host_tensors
from jaxserve.weights.live.look import check_arrays, fingerprint_of, look_at
from jaxserve.weights.live.mapping import ParamMapping, views_of
from jaxserve.weights.live.trees import Arrays, named_arrays
from jaxserve.weights.live.views import Views
from jaxserve.weights.load import read_from
from jaxserve.weights.packed import Packer
from jaxserve.weights.stored_schemes import Schemes
from pallas_kernels.matmul import Weight


class Incoming(Protocol):
    """Weights that were checked.

    Attributes:
        fingerprint: of the model that they make.
        sizes: bytes of every parameter that they replace, by path.
    """

    @property
    def fingerprint(self) -> str: ...

    @property
    def sizes(self) -> dict[tuple[str, ...], int]: ...

    def parameters(self) -> Iterator[tuple[tuple[str, ...], Weight]]:
        """One parameter after the other, each made when it is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class LiveWeights:
    """A tree of arrays. See `Incoming`; `make` makes a parameter of them."""

    fingerprint: str
    jobs: Sequence[TensorRead]
    make: Callable[[TensorRead], Weight]

    @property
    def sizes(self) -> dict[tuple[str, ...], int]:
        return {job.rule.path: job.bytes for job in self.jobs}

    def parameters(self) -> Iterator[tuple[tuple[str, ...], Weight]]:
        for job in self.jobs:
            yield job.rule.path, self.make(job)


class Fitting(NamedTuple):
    """Which parameters a tree makes, how they are had from its arrays, and the names of the arrays that are in any."""

    jobs: Sequence[TensorRead]
    views: Views
    names: Sequence[str]


class LiveModel:
    """What takes trees of one decoder for one mesh.

    Args:
        config: the decoder.
        dtype: of the parameters.
        packer: says how they are held.
        stored: which of them as a checkpoint has them.
    """

    def __init__(self, config: DecoderConfig, mesh: Mesh, dtype: str, packer: Packer, stored: Schemes = ()) -> None:
        self._packer = packer
        self._stored = stored
        self.config = config
        self._dtype = dtype
        self._jobs = list_jobs(config, mesh, dtype)
        self._converter = Converter(mesh, packer)

    @property
    def num_programs(self) -> int:
        """Programs that convert parameters, so far."""
        return self._converter.num_programs

    @engine_settings()
    def check(self, params: Any, mapping: ParamMapping = "auto", *, partial: bool = False) -> LiveWeights:
        """A tree as weights of the decoder. Nothing is converted yet; every number was looked at where it is.

        Args:
            params: the tree; see `trees.named_arrays`.
            mapping: how its names are read.
            partial: whether it may be a part of the model: whole parameters.

        Raises CheckpointError for a tree that does not fit, ConfigError for a mapping or an engine that cannot be.
        """
        arrays = named_arrays(params)
        fitting = self.fit(arrays, mapping, partial=partial)
        sums = look_at({name: arrays[name] for name in fitting.names}, self._dtype)
        return LiveWeights(fingerprint_of(self.config, sums), fitting.jobs, self._maker(arrays, fitting.views))

    def fit(self, arrays: Arrays, mapping: ParamMapping = "auto", *, partial: bool = False) -> Fitting:
        """What a tree is to the decoder, by names, shapes and dtypes alone: of the arrays nothing else need be there.

        Raises as `check` does.
        """
        rules = [job.rule for job in self._jobs]
        views = views_of(self.config, rules, arrays, mapping)
        wanted = {source.name for rule in rules for source in rule.sources}
        used = [views[name] for name in wanted]
        check_arrays(arrays, used, self._ignored(arrays), partial=partial)
        jobs = self._jobs
        if partial:
            chosen = {rule.path for rule in complete_rules(rules, views, arrays)}
            jobs = [job for job in jobs if job.rule.path in chosen]
        self._converter.require_holdable(jobs)
        names = {view.name for view in used}
        return Fitting(jobs, views, [name for name in arrays if name in names])

    def _maker(self, arrays: Arrays, views: Views) -> Callable[[TensorRead], Weight]:
        """What makes parameters where the arrays are: on devices, or in the host's memory, from where devices get their parts."""
        tensors = host_tensors(arrays, views)
        if tensors is None:
            return lambda job: self._converter.make(job, views, arrays)
        return lambda job: read_from(tensors, job, self._packer)

    @engine_settings()
    def check_directory(self, directory: Path, load_format: StoredFormat = "auto") -> DiskWeights:
        """A checkpoint as weights of the decoder; see there."""
        return DiskWeights(directory, self.config, self._jobs, self._dtype, load_format, self._packer, self._stored)

    def _ignored(self, arrays: Arrays) -> set[str]:
        """What a tree may have beyond the decoder's tensors."""
        config = self.config
        frequencies = {name for name in arrays if name.endswith("rotary_emb.inv_freq")}
        return frequencies | ({"lm_head.weight", "lm_head.w"} if config.tie_embeddings else set())
