"""Counts in the optimised HLO that a compiled program's `as_text` gives."""

import math
import re
from collections.abc import Iterator

# One definition a line: "%name = f32[4,8]{1,0} opcode(...)", or "%name = (f32[4]{0}, s32[4]{0}) opcode(...)" for several results.
DEFINITION = re.compile(r"^\s+(?:ROOT )?%\S+ = (?P<results>\(.*?\)|\S+) (?P<opcode>[a-z][\w-]*)\(")
ARRAY = re.compile(r"\w+\[([\d,]*)\]")
COLLECTIVE = re.compile(r"all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+|ragged-all-to-all")


def instructions(text: str) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Opcode and result shapes of every instruction."""
    for line in text.splitlines():
        found = DEFINITION.match(line)
        if found:
            shapes = ARRAY.findall(found["results"])
            yield found["opcode"], [tuple(int(size) for size in shape.split(",") if size) for shape in shapes]


def entry(text: str) -> str:
    """The computation that runs at every call; branches and bodies of loops are others."""
    return text[text.index("\nENTRY ") :]


def collectives(text: str) -> list[tuple[str, list[tuple[int, ...]]]]:
    """The instructions that exchange something between devices."""
    return [(opcode, shapes) for opcode, shapes in instructions(text) if COLLECTIVE.match(opcode)]


def largest_exchange(text: str) -> int:
    """Elements of the largest result of a collective; 0 without any."""
    return max((math.prod(shape) for _, shapes in collectives(text) for shape in shapes), default=0)


def copies(text: str) -> list[tuple[int, ...]]:
    """Result shapes of copies and transposes, in any order of their dimensions and without those of size 1."""
    moved = [shape for opcode, shapes in instructions(text) if re.match("copy|transpose", opcode) for shape in shapes]
    return [unordered(shape) for shape in moved]


def unordered(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape as `copies` gives it."""
    return tuple(sorted(size for size in shape if size > 1))
