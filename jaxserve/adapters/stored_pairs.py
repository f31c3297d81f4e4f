"""Where an adapter has A and B of a projection: under its own name, or, of experts, in a pair for all experts of a layer.

PEFT adapts a parameter that has all experts' matrices (`target_parameters`) by wrapping the module that it is in, and names A and
B after the module: `mlp.experts.lora_A`, or `mlp.experts.base_layer.lora_A` where another parameter's wrapper is around. Which
parameter a pair is of, only its shapes say. A is [X*r, in], one expert after the other; B is [out, r*X], where experts alternate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from jaxserve.adapters.config import AdapterConfig
from jaxserve.models.config import DecoderConfig
from jaxserve.models.lora import lora_rules
from jaxserve.models.rules import Source, WeightRule
from jaxserve.weights.checkpoint import Block

Shape = tuple[int, ...]
_EXPERTS = re.compile(r"(?P<layer>.+?)(?P<block>\.mlp|\.block_sparse_moe)?\.experts\..+")
_PARAMETERS = {"gate_up": "gate_up_proj", "up": "up_proj", "down": "down_proj"}
_WRAPPED = ("", ".base_layer")


@dataclass(frozen=True, slots=True)
class StoredPair:
    """A and B as an adapter has them.

    Attributes:
        module: after which they are named.
        target: what ranks and scales are given for.
        inputs, outputs: of one expert's matrix, or of the only one.
        experts: how many there are.
        turned: whether A is of the outputs, and B of the inputs; see `AdapterConfig.turned`.
    """

    module: str
    target: str
    inputs: int
    outputs: int
    experts: int = 1
    turned: bool = False

    def shapes(self, rank: int) -> tuple[Shape, Shape]:
        """Of A and B."""
        a, b = (self.outputs, self.inputs) if self.turned else (self.inputs, self.outputs)
        return (self.experts * rank, a), (b, rank * self.experts)

    def matrices(self, a: Block, b: Block) -> tuple[Block, Block]:
        """[X, r, in] and [X, out, r], of A and B."""
        firsts = a.reshape(self.experts, -1, a.shape[1])
        seconds = b.reshape(b.shape[0], -1, self.experts)
        if self.turned:
            return seconds.transpose(2, 1, 0), firsts.transpose(0, 2, 1)
        return firsts, seconds.transpose(2, 0, 1)


class Part(NamedTuple):
    """What of a pair belongs to one source of a rule: an expert's, and of its B these rows."""

    pair: StoredPair
    expert: int
    rows: slice


def expert_modules(model: DecoderConfig, config: AdapterConfig) -> frozenset[str]:
    """All that pairs of routed experts may be named after."""
    rules = [rule for rule in lora_rules(model, experts=True).values() if rule.stack is not None]
    own = {part.pair.module for rule in rules for _, part in own_parts(rule)}
    return frozenset(own.union(pair.module for rule in rules for pair in shared_pairs(rule, config)))


def own_parts(rule: WeightRule) -> Iterator[tuple[Source, Part]]:
    """The sources of a projection, and the parts of pairs that are named after their tensors."""
    for source in rule.sources:
        if source.expert is None:
            module, outputs = module_of(source), source.shape[0] if source.rows is None else source.rows
            yield source, Part(StoredPair(module, module, source.shape[1], outputs), 0, _rows(source, source.first_row))


def shared_pairs(rule: WeightRule, config: AdapterConfig) -> Iterator[StoredPair]:
    """What the pair of all experts' matrices may be, likelier ones first; nothing for a projection that is not experts'.

    The names are those of transformers 5, whatever a checkpoint has.
    """
    found = _EXPERTS.fullmatch(rule.sources[0].name) if rule.stack is not None else None
    if found is None or rule.stack is None:
        return
    module, first = f"{found['layer']}{'.mlp' if found['block'] else ''}.experts", rule.sources[0]
    outputs = len(rule.member(0).sources) * first.shape[0]
    target = f"{module}.{_PARAMETERS[rule.path[-1]]}"
    for turned in (False,) if first.transposed else (config.turned, not config.turned):
        for wrapped in _WRAPPED:
            yield StoredPair(module + wrapped, target, first.shape[1], outputs, rule.stack, turned)


def shared_parts(rule: WeightRule, pair: StoredPair) -> Iterator[tuple[Source, Part]]:
    """The sources of experts' projections, and the parts that they have of the pair."""
    for expert in range(pair.experts):
        first = 0
        for source in rule.member(expert).sources:
            yield source, Part(pair, expert, _rows(source, first if source.rows is None else source.first_row))
            first += source.shape[0]


def module_of(source: Source) -> str:
    """After which PEFT names A and B of a matrix that is a tensor of its own."""
    return source.name.removesuffix(".weight")


def _rows(source: Source, first: int) -> slice:
    return slice(first, first + (source.shape[0] - 1) * source.row_step + 1, source.row_step)
