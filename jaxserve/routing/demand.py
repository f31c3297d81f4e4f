"""Demand: what a replica says of the work it has and the promises it keeps; of all replicas together a FleetSample."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from jaxserve.routing.scaling import FleetSample

PROMPT_WORK, OUTPUT_WORK = 1.0, 2.0  # token-work of a prompt token that is not computed yet, and of an expected output token


class Demand(msgspec.Struct, frozen=True, array_like=True):
    """Of one replica.

    Attributes:
        work: token-work of its requests that did not end, waiting or running.
        prompts: the part of it that is prompts not computed yet.
        promised, broken: promises that came due lately, and those that were not kept; the longer ago, the less they count.
    """

    work: float = 0.0
    prompts: float = 0.0
    promised: float = 0.0
    broken: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Whether these are numbers that can be."""
        numbers = (self.work, self.prompts, self.promised, self.broken)
        if not all(isinstance(number, int | float) and 0.0 <= number < math.inf for number in numbers):
            return False
        return self.prompts <= self.work and self.broken <= self.promised


def fleet_sample(
    time: float, demands: Iterable[Demand], *, ready: int, starting: int = 0, draining: int = 0, least: int = 0
) -> FleetSample:
    """What replicas say, as one sample. Who says what cannot be says nothing; where nobody says anything, no work is known."""
    sound = [one for one in demands if one.is_sound]
    work, prompts = sum(one.work for one in sound), sum(one.prompts for one in sound)
    promised, broken = sum(one.promised for one in sound), sum(one.broken for one in sound)
    return FleetSample(
        time=time,
        ready=ready,
        starting=starting,
        draining=draining,
        work=work if sound else math.nan,
        prefill_share=prompts / work if work else 0.0,
        violations=broken / promised if promised else 0.0,
        least=least,
    )
