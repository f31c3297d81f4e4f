"""What a compiled step does, as far as speed depends on it: collectives, copies of weights and of the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from jaxserve.aot.hlo import Instruction, Module, When

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
_MOVES = ("copy", "copy-start", "transpose", "convert", "concatenate", "all-gather", "all-gather-start")
# XLA does these in place where it can, else there is a copy beside. A kernel is fused with a slice that it reads.
_UPDATES = frozenset({"scatter", "dynamic-update-slice", "custom-call"})
_PRODUCTS = frozenset({"dot", "convolution"})
_WEIGHTS, _NORMS = "params[", "params['norms']"
_VIEWS = ("bitcast", "get-tuple-element", "opt-barrier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Collectives of one kind and size.

    Attributes:
        kind: "all-reduce" and so on.
        bytes: of one device's result.
        when: "always", in a "loop", or in a "branch", which runs at steps that need it.
        count: how many.
    """

    kind: str
    bytes: int
    when: When
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is in a program of a step, or in both.

    Attributes:
        collectives: all of them, by kind, size and when.
        activation_all_reduces: all-reduces at every step of arrays [T, E], which are the layers' and the embedding's.
        weight_copies: a line for each time a whole weight is written again.
        cache_copies: a line for each time the whole cache is written again.
        weights_read_again: names of weights that more than one instruction of the entry computation reads.
        sorts: a line for each sort: what XLA sorts by CUB, which it does on GPUs, no CUDA graph can hold.
        conditionals: how many there are.
        exchanges_in_loops: collectives in the body of a loop.
    """

    collectives: tuple[Collective, ...]
    activation_all_reduces: int
    weight_copies: tuple[str, ...]
    cache_copies: tuple[str, ...]
    weights_read_again: tuple[str, ...]
    sorts: tuple[str, ...]
    conditionals: int
    exchanges_in_loops: int

    def __add__(self, other: Facts) -> Facts:
        return Facts(
            collectives=self.collectives + other.collectives,
            activation_all_reduces=self.activation_all_reduces + other.activation_all_reduces,
            weight_copies=self.weight_copies + other.weight_copies,
            cache_copies=self.cache_copies + other.cache_copies,
            weights_read_again=self.weights_read_again + other.weights_read_again,
            sorts=self.sorts + other.sorts,
            conditionals=self.conditionals + other.conditionals,
            exchanges_in_loops=self.exchanges_in_loops + other.exchanges_in_loops,
        )


def read_facts(module: Module, *, tokens: int, hidden_size: int, cache_elements: int) -> Facts:
    """Look through a step's program.

    Args:
        module: the optimised HLO.
        tokens: T of the step.
        hidden_size: E.
        cache_elements: numbers that one device's part of the KV cache holds.
    """
    scheduled = list(module.scheduled())
    found = [(kind_of(instruction), instruction, when) for instruction, when in scheduled]
    collectives = Counter((kind, _payload(instruction), when) for kind, instruction, when in found if kind)
    activations = sum(
        kind == "all-reduce" and when == "always" and any(array.elements == tokens * hidden_size for array in line.results)
        for kind, line, when in found
    )
    reads = Counter(name for _, name, _ in _weight_reads(module))
    return Facts(
        collectives=tuple(
            Collective(kind=kind, bytes=size, when=when, count=count) for (kind, size, when), count in sorted(collectives.items())
        ),
        activation_all_reduces=activations,
        weight_copies=tuple(_weight_copies(module)),
        weights_read_again=tuple(sorted(name for name, count in reads.items() if count > 1)),
        cache_copies=tuple(_describe(line) for line, _ in scheduled if _copies_cache(module, line, cache_elements)),
        sorts=tuple(_describe(line) for line, _ in scheduled if line.opcode == "sort" or "cub_sort" in line.target),
        conditionals=sum(line.opcode == "conditional" for line, _ in scheduled),
        exchanges_in_loops=sum(kind is not None and when == "loop" for kind, _, when in found),
    )


def kind_of(instruction: Instruction) -> str | None:
    """The kind of a collective, started or done at once; None for what is none, and for the end of a started one."""
    name = instruction.opcode.removesuffix("-start")
    return name if name in COLLECTIVES else None


def _payload(instruction: Instruction) -> int:
    """Bytes of the result; what is started has its operands in the result too."""
    size = sum(array.bytes for array in instruction.results)
    return size // 2 if instruction.opcode == "all-reduce-start" and len(instruction.results) > 1 else size


def _weight_reads(module: Module) -> Iterator[tuple[Instruction, str, int]]:
    """Instructions of the entry computation that take a matrix, with its name in Python and its elements.

    The scales of norms are none: each of the norms reads its own row of them.
    """
    weights: dict[str, tuple[str, int]] = {}  # by name in the HLO
    for instruction in module.computations[module.entry]:
        if instruction.opcode == "parameter" and instruction.op_name.startswith(_WEIGHTS):
            wide = [size for size in instruction.results[0].sizes if size > 1]
            if len(wide) > 1 and not instruction.op_name.startswith(_NORMS):
                weights[instruction.name] = (instruction.op_name, instruction.results[0].elements)
            continue
        read = [weights[name] for name in instruction.operands if name in weights]
        if read and instruction.opcode in _VIEWS:
            weights[instruction.name] = read[0]
            continue
        for name, elements in read:
            yield instruction, name, elements


def _weight_copies(module: Module) -> list[str]:
    """Of those, the ones that make something as large, other than a product."""
    copies = []
    for instruction, name, size in _weight_reads(module):
        opcodes = module.opcodes_in(instruction)
        moved = instruction.opcode in _MOVES or (instruction.opcode.startswith("fusion") and not opcodes & _PRODUCTS)
        if moved and max((array.elements for array in instruction.results), default=0) >= size:
            copies.append(f"{name}: {_describe(instruction)}")
    return copies


def _copies_cache(module: Module, instruction: Instruction, elements: int) -> bool:
    sizes = {array.elements for array in instruction.results}
    if instruction.opcode.startswith("all-gather"):
        return max(sizes, default=0) >= elements
    if elements not in sizes or instruction.opcode.endswith("-done"):
        return False
    if instruction.opcode.startswith("fusion"):
        return not module.opcodes_in(instruction) & _UPDATES
    return instruction.opcode in _MOVES


def _describe(instruction: Instruction) -> str:
    shapes = ", ".join(f"{array.dtype}{list(array.sizes)}" for array in instruction.results)
    return f"{instruction.opcode} {shapes} from {instruction.op_name or 'the compiler'}"
