"""What tests ask of the optimised HLO that a compiled program's `as_text` gives, read by the compile command's own parser."""

from __future__ import annotations

from collections.abc import Iterator

from jaxserve.aot.facts import kind_of
from jaxserve.aot.hlo import Instruction, Module

Shape = tuple[int, ...]


def every_step(text: str) -> list[tuple[str, list[Shape]]]:
    """Collectives that run at every call, with the shapes of their results; branches and loops are not in it."""
    return [_described(line) for line, when in Module.parse(text).scheduled() if when == "always" and kind_of(line)]


def collectives(text: str) -> list[tuple[str, list[Shape]]]:
    """All that exchanges something between devices."""
    return [_described(line) for line in _instructions(text) if kind_of(line)]


def largest_exchange(text: str) -> int:
    """Elements of the largest result of a collective; 0 without any."""
    return max((array.elements for line in _instructions(text) if kind_of(line) for array in line.results), default=0)


def copies(text: str) -> list[Shape]:
    """Result shapes of copies and transposes, in any order of their dimensions and without those of size 1."""
    moved = [line for line in _instructions(text) if line.opcode.startswith(("copy", "transpose"))]
    return [unordered(array.sizes) for line in moved for array in line.results]


def unordered(shape: Shape) -> Shape:
    """A shape as `copies` gives it."""
    return tuple(sorted(size for size in shape if size > 1))


def _instructions(text: str) -> Iterator[Instruction]:
    """Of every computation, what fusions are made of included."""
    for lines in Module.parse(text).computations.values():
        yield from lines


def _described(line: Instruction) -> tuple[str, list[Shape]]:
    return line.opcode, [array.sizes for array in line.results]
