"""Tensors of a checkpoint under other names than they are stored by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from jaxserve.models.rules import WeightRule
from jaxserve.models.text_part import text_names
from jaxserve.weights.checkpoint import Block, Bounds, Checkpoint

PREFIX = "model."
HEADS = ("lm_head.", "score.")  # which are beside the model, with the prefix before its names or without
_OF_HEADS = "fc.weight"  # draft heads have names without the prefix as well


def named_as_decoder(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint under the names of a decoder with its head, which it may have.

    One that was saved without its head, as embedding models are, lacks the "model." before its names; of a model for images and
    sound the decoder's names have more before them, and others are passed over.
    """
    names = checkpoint.shapes
    layers = any(name.startswith("layers.0.") for name in names)
    if layers and "embed_tokens.weight" in names and _OF_HEADS not in names and not any(n.startswith(PREFIX) for n in names):
        return RenamedTensors(checkpoint, {name if name.startswith(HEADS) else PREFIX + name: name for name in names})
    inner = text_names(names)
    return checkpoint if inner is None else RenamedTensors(checkpoint, inner)


# What a part of a name was called, or is called by transformers 5, which saves Mixtral's experts so; and before a model's names.
_SPELLINGS = ((".block_sparse_moe.", ".mlp."), (".LayerNorm.weight", ".LayerNorm.gamma"), (".LayerNorm.bias", ".LayerNorm.beta"))
_BASES = ("model.", "bert.", "roberta.")


def under_expected_names(checkpoint: Checkpoint, rules: Iterable[WeightRule]) -> Checkpoint:
    """The checkpoint, with tensors that rules do not find by another name that it may have under the name that they have."""
    expected = {source.name for rule in rules for source in rule.sources}
    spare = checkpoint.shapes.keys() - expected
    found: dict[str, str] = {}
    for name in sorted(expected - checkpoint.shapes.keys()):
        other = next((one for one in other_names(name) if one in spare), None)
        if other is not None:
            found[name] = other
            spare.remove(other)
    if not found:
        return checkpoint
    taken = frozenset(found.values())
    return RenamedTensors(checkpoint, {name: name for name in checkpoint.shapes if name not in taken} | found)


def other_names(name: str) -> Iterator[str]:
    """Names that a tensor or module of this name may have elsewhere."""
    spelled = [name.replace(ours, theirs) for ours, theirs in _SPELLINGS if ours in name]
    yield from spelled
    for one in (name, *spelled):
        for base in _BASES:
            yield one.removeprefix(base) if one.startswith(base) else base + one


class RenamedTensors:
    """Some tensors of a checkpoint, by other names; see `Checkpoint`.

    Args:
        stored: the name that each is stored by.
    """

    def __init__(self, checkpoint: Checkpoint, stored: Mapping[str, str]) -> None:
        self._checkpoint, self._stored = checkpoint, stored
        self.shapes: Mapping[str, tuple[int, ...]] = {name: checkpoint.shapes[there] for name, there in stored.items()}
        self.dtypes: Mapping[str, str] = {name: checkpoint.dtypes[there] for name, there in stored.items()}

    def read(self, name: str, bounds: Bounds) -> Block:
        return self._checkpoint.read(self._stored[name], bounds)

    def reads_rows(self, name: str) -> bool:
        return self._checkpoint.reads_rows(self._stored[name])

    def file_of(self, name: str) -> Path | None:
        return self._checkpoint.file_of(self._stored.get(name, name))

    def __enter__(self) -> Self:
        self._checkpoint.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._checkpoint.__exit__(kind, error, trace)
