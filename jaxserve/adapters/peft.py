"""Reads adapters that PEFT saved, into the form in which devices take them.

A directory has adapter_config.json and adapter_model.safetensors, with `base_model.model.MODULE.lora_A.weight` [r, in] and
`.lora_B.weight` [out, r] for every module that was trained, which are those of the checkpoint's own names. What was trained of
experts may be named otherwise; see `stored_pairs`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from jaxserve.adapters.config import AdapterConfig
from jaxserve.adapters.stored_pairs import Part, StoredPair, expert_modules, own_parts, shared_pairs, shared_parts
from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.lora import LoraArrays, lora_arrays, lora_rules
from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.models.text_part import PREFIXES, text_names
from jaxserve.weights.checkpoint import Block, Checkpoint, Tensors, whole
from jaxserve.weights.renamed import RenamedTensors
from jaxserve.weights.safetensors import SafetensorsCheckpoint, listed

WEIGHTS = "adapter_model.safetensors"
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
DECODER = "model."  # before the names of a decoder's modules


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
        experts: whether there is room for adapters of routed experts.
    """

    model: DecoderConfig
    shards: int
    rank: int
    dtype: str
    experts: bool = False

    @property
    def num_bytes(self) -> int:
        """Of one adapter, in the host's memory."""
        sizes = (sum(map(prod, (arrays.a, *arrays.b))) for _, arrays in self.arrays())
        return sum(sizes) * np.dtype(self.dtype).itemsize

    def arrays(self) -> Iterator[tuple[WeightRule, LoraArrays]]:
        """The projections in the order of a tree's leaves, and the shapes of their matrices."""
        rules = lora_rules(self.model, experts=self.experts)
        for path in sorted(rules):
            yield rules[path], lora_arrays(rules[path], self.shards, self.rank)


def read_peft(directory: Path, form: AdapterFormat, max_rank: int) -> HostAdapter:
    """An adapter of a directory.

    Raises CheckpointError, which names the file, the module and the limit: what is missing, damaged, not finite, of too large a
    rank, of a module that the model does not have or that takes no adapters, or of other shapes than the model's.
    """
    config = AdapterConfig.read(directory)
    with SafetensorsCheckpoint(directory, WEIGHTS) as stored:
        tensors = _of_decoder(AdapterTensors(config, stored, f"adapter {directory}", "lora_path"), stored)
        return pack(tensors, form, max_rank)


def _of_decoder(tensors: AdapterTensors, stored: Checkpoint) -> AdapterTensors:
    """Under the names of a decoder, if it has those of a decoder within a model for images and sound; no other part is read."""
    modules = {name.removeprefix(PREFIX): name for name in stored.shapes}
    inner = text_names(modules)
    if inner is None:
        return tensors
    names = {PREFIX + plain: modules[there] for plain, there in inner.items()}
    begins = [begin for begin, plain in PREFIXES.items() if plain == DECODER and any(name.startswith(begin) for name in modules)]
    return replace(tensors, stored=RenamedTensors(stored, names), begin=begins[0] if begins else DECODER)


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
        begin: what its names of the decoder's modules have in the place of "model.", if it was made with a model for images.
    """

    config: AdapterConfig
    stored: Stored
    where: str
    param: str
    shown: Mapping[str, str] = field(default_factory=dict)
    begin: str = DECODER

    def rank_of(self, target: str) -> int:
        return self.config.rank_of(self._called(target))

    def scale_of(self, target: str) -> float:
        return self.config.scale_of(self._called(target))

    def _called(self, target: str) -> str:
        """As patterns of ranks and scales know it."""
        return self.begin + target.removeprefix(DECODER) if target.startswith(DECODER) else target

    def wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {what}", param=self.param)


def pack(tensors: AdapterTensors, form: AdapterFormat, max_rank: int) -> HostAdapter:
    """An adapter as devices take it. Raises CheckpointError, as `read_peft`."""
    pairs = _Pairs(tensors, form, max_rank)
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
    _Pairs(tensors, form, max_rank)


class _Pairs:
    """A and B of a model's projections, which are all that an adapter has, and as they must be.

    Attributes:
        modules: that the adapter changes.
        largest_rank: of those that were read.
    """

    def __init__(self, tensors: AdapterTensors, form: AdapterFormat, max_rank: int) -> None:
        self.modules = _modules(tensors)
        self.largest_rank = 0
        self._tensors = tensors
        self._max_rank = max_rank
        self._parts: dict[Source, Part] = {}
        self._read: tuple[StoredPair, tuple[Block, Block]] | None = None
        for rule, _ in form.arrays():
            self._find(rule)
        pairs = dict.fromkeys(part.pair for part in self._parts.values())
        if left := self.modules.difference(pair.module for pair in pairs):
            raise self._unfit(left, form)
        for pair in pairs:
            self._shapes(pair)

    def of(self, source: Source) -> tuple[Block, Block] | None:
        """A [r, in] and B [out, r] of a projection, B with the scale in it; None if the adapter does not change it."""
        part = self._parts.get(source)
        if part is None:
            return None
        if self._read is None or self._read[0] != part.pair:
            self._read = part.pair, self._matrices(part.pair)
        a, b = self._read[1]
        return a[part.expert], b[part.expert][part.rows]

    def _find(self, rule: WeightRule) -> None:
        """Where what changes a projection is."""
        parts = [(source, part) for source, part in own_parts(rule) if part.pair.module in self.modules]
        shared = (pair for pair in shared_pairs(rule, self._tensors.config) if self._is_of(pair))
        for pair in islice(shared, 1):
            parts += shared_parts(rule, pair)
        for source, part in parts:
            if source in self._parts:
                raise self._tensors.wrong(f"changes {source.name} twice: by {part.pair.module} as well")
            self._parts[source] = part

    def _is_of(self, pair: StoredPair) -> bool:
        shapes, rank = self._tensors.stored.shapes, self._tensors.rank_of(pair.target)
        return pair.module in self.modules and tuple(shapes[name] for name in _names(pair)) == pair.shapes(rank)

    def _unfit(self, left: frozenset[str], form: AdapterFormat) -> CheckpointError:
        """Why modules were not taken."""
        config = self._tensors.config
        if not form.experts and (routed := left & expert_modules(form.model, config)):
            return self._tensors.wrong(f"changes routed experts, which needs --lora-experts: {listed(sorted(routed))}")
        pairs = [pair for rule, _ in form.arrays() for pair in shared_pairs(rule, config) if pair.module in left]
        if pairs:
            return self._unlike([pair for pair in pairs if pair.module == pairs[0].module])
        return self._tensors.wrong(f"changes what takes no adapters in this model, or is not in it: {listed(sorted(left))}")

    def _unlike(self, pairs: Sequence[StoredPair]) -> CheckpointError:
        """That A and B of a module have the shapes of none of these."""
        found = " and ".join(f"{self._shown(name)} {list(self._tensors.stored.shapes[name])}" for name in _names(pairs[0]))
        rank_of = self._tensors.rank_of
        fitting = {pair.target: [list(shape) for shape in pair.shapes(rank_of(pair.target))] for pair in reversed(pairs)}
        may_be = " or ".join(f"{shapes} for {target}" for target, shapes in fitting.items())
        return self._tensors.wrong(f"{found} must be {may_be}, each once")

    def _matrices(self, pair: StoredPair) -> tuple[Block, Block]:
        a, b = pair.matrices(*(self._tensor(name, shape) for name, shape in self._shapes(pair).items()))
        self.largest_rank = max(self.largest_rank, a.shape[1])
        return a, b * np.float32(self._tensors.scale_of(pair.target))

    def _shapes(self, pair: StoredPair) -> dict[str, tuple[int, ...]]:
        """Of A and B by name, which are as they must be."""
        rank, tensors = self._tensors.rank_of(pair.target), self._tensors
        if rank > self._max_rank:
            raise tensors.wrong(f"{pair.target} has rank {rank}, and max_lora_rank is {self._max_rank}")
        shapes = dict(zip(_names(pair), pair.shapes(rank), strict=True))
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


def _names(pair: StoredPair) -> tuple[str, str]:
    """Of A and B."""
    return PREFIX + pair.module + A, PREFIX + pair.module + B


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
    if rule.stack is not None:
        for expert in range(rule.stack):
            _fill(a[expert], [one[expert] for one in b], rule.member(expert), form, pairs)
        return
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
