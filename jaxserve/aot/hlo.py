"""Reads XLA's optimised HLO: instructions by computation, and which of them run at every step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

When = Literal["always", "loop", "branch"]

BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f8e4m3fn": 8, "f8e5m2": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip

_HEADER = re.compile(r"(?P<entry>ENTRY )?%(?P<name>[\w.\-]+) .*\{$")
_START = re.compile(r"  (ROOT )?%(?P<name>[\w.\-]+) = ")
_OPCODE = re.compile(r" (?P<opcode>[a-z][a-z0-9\-]*)\(")
_ARRAY = re.compile(r"(?P<dtype>[a-z][a-z0-9]*)\[(?P<sizes>[0-9,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=(%[\w.\-]+))")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Array:
    dtype: str
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """How large, without padding."""
        return self.elements * BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation.

    Attributes:
        results: the arrays it makes; several for a tuple.
        operands: names of what it reads.
        called: computation that it runs, or that a fusion is made of; None for none.
        branches: computations of which it runs one.
        op_name: where in the Python program it is from.
        target: what a custom call calls; empty for others.
    """

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    called: str | None
    branches: tuple[str, ...]
    op_name: str
    target: str


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled program.

    Attributes:
        entry: name of the computation that a call runs.
        computations: instructions in the order they are scheduled, by computation.
    """

    entry: str
    computations: dict[str, tuple[Instruction, ...]]

    @classmethod
    def parse(cls, text: str) -> Module:
        """Read the text that `compiled.as_text()` gives. Raises ValueError for one without an entry computation."""
        entry, name = "", ""
        computations: dict[str, list[Instruction]] = {}
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header is not None:
                name = header["name"]
                computations[name] = []
                entry = name if header["entry"] else entry
            elif name and _START.match(line):
                computations[name].append(_instruction(line))
        if not entry:
            raise ValueError("the HLO text has no entry computation")
        return cls(entry, {name: tuple(lines) for name, lines in computations.items()})

    def scheduled(self) -> Iterator[tuple[Instruction, When]]:
        """Every instruction that is launched, fusions as one, with whether it runs once a call, in a loop, or in some calls."""
        yield from self._walk(self.entry, "always")

    def _walk(self, name: str, when: When) -> Iterator[tuple[Instruction, When]]:
        for instruction in self.computations[name]:
            yield instruction, when
            if instruction.opcode == "while" and instruction.called is not None:
                yield from self._walk(instruction.called, when if when == "branch" else "loop")
            elif instruction.opcode in ("call", "async-start") and instruction.called is not None:
                yield from self._walk(instruction.called, when)
            for branch in instruction.branches:
                yield from self._walk(branch, "branch")

    def opcodes_in(self, instruction: Instruction) -> frozenset[str]:
        """Opcodes that a fusion is made of; of another instruction, its own."""
        if not instruction.opcode.startswith("fusion") or instruction.called is None:
            return frozenset({instruction.opcode})
        return frozenset(part.opcode for part in self.computations[instruction.called])


def _instruction(line: str) -> Instruction:
    start = _START.match(line)
    assert start is not None
    rest = line[start.end() - 1 :]  # " type opcode(operands), attributes"
    opcode = _OPCODE.search(rest)
    if opcode is None:
        raise ValueError(f"no opcode in the HLO line {line[:200]!r}")
    arguments, attributes = _split(rest[opcode.end() - 1 :])
    called, op_name, target = (pattern.search(attributes) for pattern in (_CALLED, _OP_NAME, _TARGET))
    branches = [name for several, one in _BRANCHES.findall(attributes) for name in _NAME.findall(several or one)]
    arrays = [Array(dtype, _sizes(sizes)) for dtype, sizes in _ARRAY.findall(rest[: opcode.start()]) if dtype in BITS]
    return Instruction(
        name=start["name"],
        opcode=opcode["opcode"],
        results=tuple(arrays),
        operands=tuple(_NAME.findall(arguments)),
        called=called[1] if called else None,
        branches=tuple(branches),
        op_name=op_name[1].replace("\\'", "'") if op_name else "",
        target=target[1] if target else "",
    )


def _split(text: str) -> tuple[str, str]:
    """The parenthesis that `text` begins with, and what follows it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: place + 1], text[place + 1 :]
    raise ValueError(f"no closing parenthesis in the HLO line {text[:200]!r}")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(",") if size)
