"""Reads adapters that PEFT saved, into the form in which devices take them.

A directory has adapter_config.json and adapter_model.safetensors, with `base_model.model.MODULE.lora_A.weight` [r, in] and
`.lora_B.weight` [out, r] for every module that was trained, which are those of the checkpoint's own names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from jaxserve.adapters.config import AdapterConfig
from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.lora import LoraArrays, lora_arrays, lora_rules
from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights.checkpoint import Block, Tensors, whole
from jaxserve.weights.safetensors import SafetensorsCheckpoint, listed

WEIGHTS = "adapter_model.safetensors"
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True)
class HostAdapter:
    """An adapter in the host's memory.

    Attributes:
        numbers: all its matrices, one after another, as `executor.lora.put_adapter` takes them.
        digest: of its content: two adapters with the same are the same.
        rank: its largest.
        base_model: that it says it was trained on.
        modules: how many it changes.
    """

    numbers: Block
    digest: str
    rank: int
    base_model: str | None
    modules: int


@dataclass(frozen=True, slots=True)
class AdapterFormat:
    """How a model's devices take adapters.

    Attributes:
        model: the decoder.
        shards: that its projections are packed for.
        rank: R, of the slots.
        dtype: of the numbers.
    """

    model: DecoderConfig
    shards: int
    rank: int
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Of one adapter, in the host's memory."""
        sizes = (sum(map(prod, (arrays.a, *arrays.b))) for _, arrays in self.arrays())
        return sum(sizes) * np.dtype(self.dtype).itemsize

    def arrays(self) -> Iterator[tuple[WeightRule, LoraArrays]]:
        """The projections in the order of a tree's leaves, and the shapes of their matrices."""
        rules = lora_rules(self.model)
        for path in sorted(rules):
            yield rules[path], lora_arrays(rules[path], self.shards, self.rank)


def read_peft(directory: Path, form: AdapterFormat, max_rank: int) -> HostAdapter:
    """An adapter of a directory.

    Raises CheckpointError, which names the file, the module and the limit: what is missing, damaged, not finite, of too large a
    rank, of a module that the model does not have or that takes no adapters, or of other shapes than the model's.
    """
    config = AdapterConfig.read(directory)
    with SafetensorsCheckpoint(directory, WEIGHTS) as stored:
        return pack(AdapterTensors(config, stored, f"adapter {directory}", "lora_path"), form, max_rank)


class Stored(Tensors, Protocol):
    """Tensors by name, and their shapes."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...


@dataclass(frozen=True, slots=True)
class AdapterTensors:
    """What an adapter is made of.

    Attributes:
        config: what it says of itself.
        stored: A and B of its modules, by PEFT's names.
        where, param: what errors call it, and what it was given as.
        shown: what errors call a tensor that has another name where it comes from.
    """

    config: AdapterConfig
    stored: Stored
    where: str
    param: str
    shown: Mapping[str, str] = field(default_factory=dict)

    def wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {what}", param=self.param)


def pack(tensors: AdapterTensors, form: AdapterFormat, max_rank: int) -> HostAdapter:
    """An adapter as devices take it. Raises CheckpointError, as `read_peft`."""
    pairs = _Pairs(tensors, max_rank)
    pairs.check(form)
    numbers = np.zeros(form.num_bytes // np.dtype(form.dtype).itemsize, form.dtype)
    at = 0
    for rule, arrays in form.arrays():
        parts = []
        for shape in (arrays.a, *arrays.b):
            parts.append(numbers[at : at + prod(shape)].reshape(shape))
            at += prod(shape)
        _fill(parts[0], parts[1:], rule, form, pairs)
    return HostAdapter(numbers, _digest(numbers), pairs.largest_rank, tensors.config.base_model, len(pairs.modules))


def check_fits(tensors: AdapterTensors, form: AdapterFormat, max_rank: int) -> None:
    """Raise CheckpointError for what `pack` would refuse by names and shapes alone; nothing is read."""
    _Pairs(tensors, max_rank).check(form)


class _Pairs:
    """A and B by module, each read once.

    Attributes:
        modules: that the adapter changes.
        largest_rank: of those that were read.
    """

    def __init__(self, tensors: AdapterTensors, max_rank: int) -> None:
        self.modules = _modules(tensors)
        self.largest_rank = 0
        self._tensors = tensors
        self._max_rank = max_rank
        self._read: dict[str, tuple[Block, Block]] = {}

    def check(self, form: AdapterFormat) -> None:
        """Raise CheckpointError unless all fits the projections of a model, and nothing else is there."""
        left = set(self.modules)
        for source in (source for rule, _ in form.arrays() for source in rule.sources):
            module = _module_of(source)
            if module in left:
                left.discard(module)
                self._shapes(module, source)
        if left:
            raise self._tensors.wrong(f"changes what takes no adapters in this model, or is not in it: {listed(sorted(left))}")

    def of(self, source: Source) -> tuple[Block, Block] | None:
        """A [r, in] and B [out, r] of a projection, B with the scale in it; None if the adapter does not change it."""
        module = _module_of(source)
        if module not in self.modules:
            return None
        if module not in self._read:
            self._read[module] = self._pair(module, source)
        a, b = self._read[module]
        if source.rows is not None:
            b = b[source.first_row :: source.row_step][: source.shape[0]]
        return a, b

    def _pair(self, module: str, source: Source) -> tuple[Block, Block]:
        a, b = (self._tensor(name, shape) for name, shape in self._shapes(module, source).items())
        self.largest_rank = max(self.largest_rank, a.shape[0])
        return a, b * np.float32(self._tensors.config.scale_of(module))

    def _shapes(self, module: str, source: Source) -> dict[str, tuple[int, ...]]:
        """Of A and B by name, which are as they must be."""
        rank, tensors = self._tensors.config.rank_of(module), self._tensors
        if rank > self._max_rank:
            raise tensors.wrong(f"{module} has rank {rank}, and max_lora_rank is {self._max_rank}")
        outputs = source.shape[0] if source.rows is None else source.rows
        shapes: dict[str, tuple[int, ...]] = {PREFIX + module + A: (rank, source.shape[1]), PREFIX + module + B: (outputs, rank)}
        for name, shape in shapes.items():
            stored = tensors.stored.shapes[name]
            if stored != shape:
                raise tensors.wrong(f"{self._shown(name)} is {list(stored)}, and must be {list(shape)}")
        return shapes

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Block:
        block = self._tensors.stored.read(name, whole(shape)).astype(np.float32)
        if not np.isfinite(block).all():
            raise self._tensors.wrong(f"{self._shown(name)} has numbers that are not finite")
        return block

    def _shown(self, name: str) -> str:
        return self._tensors.shown.get(name, name.removeprefix(PREFIX))


def _module_of(source: Source) -> str:
    return source.name.removesuffix(".weight")


def _modules(tensors: AdapterTensors) -> frozenset[str]:
    """The modules that there are A and B of. Raises CheckpointError for anything else."""
    found: Mapping[str, set[str]] = {A: set(), B: set()}
    odd = []
    for name in tensors.stored.shapes:
        end = next((end for end in found if name.startswith(PREFIX) and name.endswith(end)), None)
        if end is None:
            odd.append(name)
        else:
            found[end].add(name.removeprefix(PREFIX).removesuffix(end))
    if odd:
        raise tensors.wrong(f"has tensors that are no part of a LoRA adapter: {listed(sorted(odd))}")
    alone = sorted(found[A] ^ found[B])
    if alone:
        raise tensors.wrong(f"has only one of lora_A and lora_B of {listed(alone)}")
    if not found[A]:
        raise tensors.wrong("has no tensors")
    return frozenset(found[A])


def _fill(a: Block, b: list[Block], rule: WeightRule, form: AdapterFormat, pairs: _Pairs) -> None:
    """Put the matrices of one projection where they belong; what the adapter does not change stays 0."""
    for place, (source, into) in enumerate(zip(rule.sources, b, strict=True)):
        pair = pairs.of(source)
        if pair is None:
            continue
        rank = pair[0].shape[0]
        if rule.packing is Packing.ROWS:  # a [R, s, X], into [R, out]
            a[:rank] = pair[0].reshape(rank, *a.shape[1:])
            into[:rank] = pair[1].T
            continue
        a[place * form.rank : place * form.rank + rank] = pair[0]
        for shard in range(into.shape[1]):
            first, last = source.rows_of(shard, into.shape[1])
            into[:rank, shard] = pair[1][first:last].T


def _digest(numbers: Block) -> str:
    return hashlib.blake2b(numbers.view(np.uint8), digest_size=16).hexdigest()
