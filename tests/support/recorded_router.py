"""A router that writes down what it is told and what it says, so that another can be asked the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.routing.router import ReplicaLoad, Router, RoutingRequest


@dataclass(frozen=True, slots=True)
class Told:
    """One call of a Router's method, and its answer."""

    method: str
    arguments: tuple[Any, ...]
    answer: str | None = None


class RecordedRouter:
    """A Router around another one.

    Attributes:
        told: everything so far, in order.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.told: list[Told] = []

    @property
    def choices(self) -> list[str | None]:
        return [one.answer for one in self.told if one.method == "choose"]

    def join(self, replica: str, weight: float = 1.0) -> None:
        self._pass_on("join", replica, weight)

    def leave(self, replica: str) -> None:
        self._pass_on("leave", replica)

    def observe(self, replica: str, load: ReplicaLoad, now: float) -> None:
        self._pass_on("observe", replica, load, now)

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        return self._pass_on("choose", request, now, tuple(excluded))

    def started(self, request_id: str, now: float) -> None:
        self._pass_on("started", request_id, now)

    def ended(self, request_id: str, now: float) -> None:
        self._pass_on("ended", request_id, now)

    def _pass_on(self, method: str, *arguments: Any) -> str | None:
        answer: str | None = getattr(self._router, method)(*arguments)
        self.told.append(Told(method, arguments, answer))
        return answer


def replayed(told: Sequence[Told], router: Router) -> list[str | None]:
    """What a router chooses that is told the same."""
    answers = [(one.method, getattr(router, one.method)(*one.arguments)) for one in told]
    return [answer for method, answer in answers if method == "choose"]
