"""What is asked of the engines: the same token ids, lengths and arrival times for all, other ones in every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.batch_requests import VOCABULARY

FIRST = 3  # below are special tokens


@dataclass(frozen=True, slots=True)
class Request:
    """Token ids of a prompt, tokens to generate, and seconds from the start at which it arrives."""

    prompt: list[int]
    output: int
    arrival: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of load.

    Attributes:
        name: in results.
        requests: makes them for a seed.
        clients: how many are answered at a time; the next is sent when one has ended. 0: all at their arrival.
        rounds: how many rounds have it at most.
    """

    name: str
    requests: Callable[[int], Sequence[Request]]
    clients: int = 0
    rounds: int = 100


def streams(count: int, prompt: int = 128, output: int = 128, rounds: int = 1) -> Callable[[int], Sequence[Request]]:
    """So many equal requests, `rounds` times."""

    def make(seed: int) -> list[Request]:
        random = Random(f"streams {count} {prompt} {seed}")
        return [Request(words(random, prompt), output) for _ in range(count * rounds)]

    return make


def mixed(count: int, rate: float = 0.0, longest_output: int = 256) -> Callable[[int], Sequence[Request]]:
    """Prompts of 32 to 512 tokens, outputs of 16 and more; arrivals are Poisson with a rate a second, or all at once."""

    def make(seed: int) -> list[Request]:
        random, now, made = Random(f"mixed {count} {rate} {seed}"), 0.0, []
        for _ in range(count):
            now += random.expovariate(rate) if rate else 0.0
            made.append(Request(words(random, random.randint(32, 512)), random.randint(16, longest_output), now))
        return made

    return make


def shared_prefix(count: int, prefix: int = 1024, own: int = 32, output: int = 32) -> Callable[[int], Sequence[Request]]:
    """All begin alike, with tokens that no other round has."""

    def make(seed: int) -> list[Request]:
        random = Random(f"shared {seed}")
        beginning = words(random, prefix)
        return [Request(beginning + words(random, own), output) for _ in range(count)]

    return make


def words(random: Random, count: int) -> list[int]:
    """Tokens at random."""
    return random.choices(range(FIRST, VOCABULARY), k=count)


def workloads(*, quick: bool, poisson_rate: float) -> list[Workload]:
    """All of them; quick: a smaller mixed burst, and no Poisson arrivals."""
    burst = 32 if quick else 64
    made = [
        Workload("one stream", streams(1, rounds=1 if quick else 2), clients=1),
        *(Workload(f"{count} streams", streams(count)) for count in (8, 16, 32)),
        Workload("prefill 512", streams(1, prompt=512, output=1, rounds=3), clients=1),
        Workload("mixed burst", mixed(burst), clients=16),
        Workload("shared prefix", shared_prefix(32)),
    ]
    return made if quick else [*made, Workload("mixed poisson", mixed(48, poisson_rate), rounds=1)]


def warm_up() -> list[Workload]:
    """What every engine is asked before anything is measured: its first steps of every size compile or allocate."""
    return [
        Workload("warm-up", streams(count, prompt=prompt, output=8))
        for count, prompt in ((1, 128), (8, 128), (16, 128), (32, 128), (1, 512))
    ] + [Workload("warm-up", shared_prefix(32, output=8)), Workload("warm-up", mixed(16), clients=16)]
