"""Experts of a checkpoint that has each kind of their matrices in one tensor, under the names of each expert's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from jaxserve.models.rules import WeightRule
from jaxserve.weights.checkpoint import Block, Bounds, Checkpoint
from jaxserve.weights.renamed import other_names, under_expected_names

_OWN = re.compile(r"(.+\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_KINDS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
_STACKED = {"gate": ("gate_up",), "up": ("gate_up", "up"), "down": ("down",)}


class _Part(NamedTuple):
    """An expert's matrix: in which tensor [X, out, in], the expert, its first row, and its shape."""

    tensor: str
    expert: int
    row: int
    shape: tuple[int, int]


def with_own_experts(checkpoint: Checkpoint, rules: Iterable[WeightRule]) -> Checkpoint:
    """The checkpoint, with the matrices that rules call by the names of single experts where it has all experts' in one tensor.

    Those are `experts.gate_up_proj` [X, 2F, E], gates before what they gate, or `experts.up_proj` [X, F, E] without gates, and
    `experts.down_proj` [X, E, F]: transformers 5 saves all families so. The other tensors may have other names as well; see
    `renamed.under_expected_names`.
    """
    rules = list(rules)
    checkpoint = under_expected_names(checkpoint, rules)
    missing = (source.name for rule in rules for source in rule.sources if source.name not in checkpoint.shapes)
    parts = {name: part for name in missing if (part := _part_of(checkpoint, name)) is not None}
    return StackedExperts(checkpoint, parts) if parts else checkpoint


def _part_of(checkpoint: Checkpoint, name: str) -> _Part | None:
    found = _OWN.fullmatch(name)
    if found is None:
        return None
    number, kind = int(found[2]), _KINDS[found[3]]
    tensors = [f"{block}.{stacked}_proj" for block in (found[1], *other_names(found[1])) for stacked in _STACKED[kind]]
    tensor = next((one for one in tensors if one in checkpoint.shapes), "")
    shape = checkpoint.shapes.get(tensor, ())
    if len(shape) != 3 or number >= shape[0]:
        return None
    rows = shape[1] // 2 if tensor.endswith("gate_up_proj") else shape[1]
    first = rows if kind == "up" and tensor.endswith("gate_up_proj") else 0
    return _Part(tensor, number, first, (rows, shape[2]))


class StackedExperts:
    """See `with_own_experts`, and `Checkpoint`."""

    def __init__(self, checkpoint: Checkpoint, parts: Mapping[str, _Part]) -> None:
        self._checkpoint, self._parts = checkpoint, parts
        taken = {part.tensor for part in parts.values()}
        kept = [name for name in checkpoint.shapes if name not in taken]
        self.shapes: Mapping[str, tuple[int, ...]] = {
            **{name: checkpoint.shapes[name] for name in kept},
            **{name: part.shape for name, part in parts.items()},
        }
        self.dtypes: Mapping[str, str] = {
            **{name: checkpoint.dtypes[name] for name in kept},
            **{name: checkpoint.dtypes[part.tensor] for name, part in parts.items()},
        }

    def read(self, name: str, bounds: Bounds) -> Block:
        part = self._parts.get(name)
        if part is None:
            return self._checkpoint.read(name, bounds)
        (start, stop), inputs = bounds
        rows = (part.row + start, part.row + stop)
        block = self._checkpoint.read(part.tensor, ((part.expert, part.expert + 1), rows, inputs))
        return block.reshape(block.shape[1:])

    def reads_rows(self, name: str) -> bool:
        part = self._parts.get(name)
        return self._checkpoint.reads_rows(name if part is None else part.tensor)

    def file_of(self, name: str) -> Path | None:
        part = self._parts.get(name)
        return self._checkpoint.file_of(name if part is None else part.tensor)

    def __enter__(self) -> Self:
        self._checkpoint.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._checkpoint.__exit__(kind, error, trace)
