"""What is asked of a server in a minute: the same kinds and lengths at the same times in every minute, with new words.

Minutes that are alike can be held against each other: what differs between them is the server's doing, not the traffic's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from jaxserve.types import ServiceClass

FIRST_TOKEN = 3  # below are special tokens
PAUSE = 0.1  # the end of every minute, as a share of it: nobody asks anything
_LONGEST_PROMPT, _LONGEST_OUTPUT = 512, 128
_SHORTEST = 8
_PREFIXES, _PREFIX_TOKENS = 3, 128
_PREFIX_SHARE, _FREE_SHARE = 0.25, 0.4


class Kind(StrEnum):
    """How it is asked."""

    STREAM = "http stream"
    FORM = "http stream, of a form"
    WHOLE = "http"
    SEVERAL = "http stream, n 3"
    GRPC = "grpc"
    STREAM_LEFT = "http stream, left"
    GRPC_LEFT = "grpc, left"


SHARES = {
    Kind.STREAM: 0.40,
    Kind.WHOLE: 0.15,
    Kind.SEVERAL: 0.05,
    Kind.GRPC: 0.25,
    Kind.STREAM_LEFT: 0.10,
    Kind.GRPC_LEFT: 0.05,
}
LEFT = (Kind.STREAM_LEFT, Kind.GRPC_LEFT)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        number: in its minute.
        kind: how it is asked.
        due: seconds since the minute began.
        prompt, output: tokens; all of the output is generated.
        prefix: the shared prefix that comes before the prompt; None for none.
        prefix_tokens: that it has.
        tenant, service_class: who asks, and with what precedence.
    """

    number: int
    kind: Kind
    due: float
    prompt: int
    output: int
    prefix: int | None
    prefix_tokens: int
    tenant: str
    service_class: ServiceClass

    @property
    def sequences(self) -> int:
        """How many outputs it asks for."""
        return 3 if self.kind is Kind.SEVERAL else 1


def minute(rate: float, context: int, seconds: float = 60.0, seed: int = 0, forms: float = 0.0) -> list[Ask]:
    """Poisson arrivals with a rate a second until the pause at the end of a minute of so many seconds.

    A prefix, a prompt and an output fit into a context of so many tokens together. Of plain streams, a share `forms` must have
    outputs of a form; nothing else changes with it.
    """
    random, now = Random(f"minute {seed}"), 0.0
    made: list[Ask] = []
    while (now := now + random.expovariate(rate)) < seconds * (1 - PAUSE):
        made.append(_ask(random, len(made), now, context))
    chance = Random(f"forms {seed}")
    return [replace(ask, kind=Kind.FORM) if ask.kind is Kind.STREAM and chance.random() < forms else ask for ask in made]


def _ask(random: Random, number: int, due: float, context: int) -> Ask:
    free, shares = random.random() < _FREE_SHARE, random.random() < _PREFIX_SHARE
    return Ask(
        number=number,
        kind=random.choices(list(SHARES), list(SHARES.values()))[0],
        due=due,
        prompt=_length(random, 64, 0.9, min(_LONGEST_PROMPT, context // 2)),
        output=_length(random, 24, 0.7, min(_LONGEST_OUTPUT, context // 4)),
        prefix=random.randrange(_PREFIXES) if shares else None,
        prefix_tokens=min(_PREFIX_TOKENS, context // 4) if shares else 0,
        tenant="beta" if free else "alpha",
        service_class=ServiceClass.INTERACTIVE_FREE if free else ServiceClass.INTERACTIVE_PAID,
    )


def _length(random: Random, median: int, sigma: float, longest: int) -> int:
    return max(_SHORTEST, min(longest, round(random.lognormvariate(math.log(median), sigma))))


def prompt(ask: Ask, number: int, vocabulary: int) -> list[int]:
    """The prompt's token ids in the minute of this number: a shared prefix, new each minute, and its own."""
    shared = words(f"prefix {number} {ask.prefix}", ask.prefix_tokens, vocabulary)
    return shared + words(f"prompt {number} {ask.number}", ask.prompt, vocabulary)


def words(what: str, count: int, vocabulary: int) -> list[int]:
    """Token ids at random, the same for the same name."""
    return Random(what).choices(range(FIRST_TOKEN, vocabulary), k=count)
