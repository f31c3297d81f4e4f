"""Reads adapters that PEFT saved, into the form in which devices take them.

A directory has adapter_config.json and adapter_model.safetensors, with `base_model.model.MODULE.lora_A.weight` [r, in] and
`.lora_B.weight` [out, r] for every module that was trained, which are those of the checkpoint's own names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from jaxserve.adapters.config import AdapterConfig
from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.lora import LoraArrays, lora_arrays, lora_rules
from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights.checkpoint import Block, whole
from jaxserve.weights.safetensors import SafetensorsCheckpoint, listed

WEIGHTS = "adapter_model.safetensors"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


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


def read_adapter(directory: Path, form: AdapterFormat, max_rank: int) -> HostAdapter:
    """An adapter of a directory.

    Raises CheckpointError, which names the file, the module and the limit: what is missing, damaged, not finite, of too large a
    rank, of a module that the model does not have or that takes no adapters, or of other shapes than the model's.
    """
    config = AdapterConfig.read(directory)
    with SafetensorsCheckpoint(directory, WEIGHTS) as stored:
        modules = _modules(directory / WEIGHTS, stored)
        pairs = _Pairs(config, stored, modules, max_rank)
        numbers = np.zeros(form.num_bytes // np.dtype(form.dtype).itemsize, form.dtype)
        at = 0
        for rule, arrays in form.arrays():
            parts = []
            for shape in (arrays.a, *arrays.b):
                parts.append(numbers[at : at + prod(shape)].reshape(shape))
                at += prod(shape)
            _fill(parts[0], parts[1:], rule, form, pairs)
        pairs.check_all_used()
        return HostAdapter(numbers, _digest(numbers), pairs.largest_rank, config.base_model, len(modules))


class _Pairs:
    """A and B by module, each read once, and which of them were."""

    def __init__(self, config: AdapterConfig, stored: SafetensorsCheckpoint, modules: frozenset[str], max_rank: int) -> None:
        self._config = config
        self._stored = stored
        self._modules = modules
        self._max_rank = max_rank
        self._read: dict[str, tuple[Block, Block]] = {}
        self.largest_rank = 0

    def of(self, source: Source) -> tuple[Block, Block] | None:
        """A [r, in] and B [out, r] of a projection, B with the scale in it; None if the adapter does not change it."""
        module = source.name.removesuffix(".weight")
        if module not in self._modules:
            return None
        if module not in self._read:
            self._read[module] = self._pair(module, source)
        a, b = self._read[module]
        if source.rows is not None:
            b = b[source.first_row :: source.row_step][: source.shape[0]]
        return a, b

    def check_all_used(self) -> None:
        left = sorted(self._modules - set(self._read))
        if left:
            raise self._wrong(f"changes what takes no adapters in this model, or is not in it: {listed(left)}")

    def _pair(self, module: str, source: Source) -> tuple[Block, Block]:
        rank = self._config.rank_of(module)
        if rank > self._max_rank:
            raise self._wrong(f"{module} has rank {rank}, and max_lora_rank is {self._max_rank}")
        outputs = source.shape[0] if source.rows is None else source.rows
        a = self._tensor(module + _A, (rank, source.shape[1]))
        b = self._tensor(module + _B, (outputs, rank))
        self.largest_rank = max(self.largest_rank, rank)
        return a, b * np.float32(self._config.scale_of(module))

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Block:
        stored = self._stored.shapes[_PREFIX + name]
        if stored != shape:
            raise self._wrong(f"{name} is {list(stored)}, and must be {list(shape)}")
        block = self._stored.read(_PREFIX + name, whole(shape)).astype(np.float32)
        if not np.isfinite(block).all():
            raise self._wrong(f"{name} has numbers that are not finite")
        return block

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"adapter {self._config.where.parent}: {what}", param="lora_path")


def _modules(path: Path, stored: SafetensorsCheckpoint) -> frozenset[str]:
    """The modules that a file has A and B of. Raises CheckpointError for anything else in it."""
    found: Mapping[str, set[str]] = {_A: set(), _B: set()}
    odd = []
    for name in stored.shapes:
        end = next((end for end in found if name.startswith(_PREFIX) and name.endswith(end)), None)
        if end is None:
            odd.append(name)
        else:
            found[end].add(name.removeprefix(_PREFIX).removesuffix(end))
    if odd:
        raise CheckpointError(f"{path} has tensors that are no part of a LoRA adapter: {listed(sorted(odd))}", param="lora_path")
    alone = sorted(found[_A] ^ found[_B])
    if alone:
        raise CheckpointError(f"{path} has only one of lora_A and lora_B of {listed(alone)}", param="lora_path")
    if not found[_A]:
        raise CheckpointError(f"{path} has no tensors", param="lora_path")
    return frozenset(found[_A])


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
