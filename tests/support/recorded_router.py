"""A router that writes down what it is told and what it says, so that another can be asked the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.routing.router import PageListener, ReplicaLoad, Router, RoutingRequest


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

    @property
    def pages(self) -> PageListener | None:
        return None if self._router.pages is None else _RecordedPages(self._router.pages, self.told)

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


class _RecordedPages:
    """A PageListener around another one."""

    def __init__(self, pages: PageListener, told: list[Told]) -> None:
        self._pages = pages
        self._told = told

    def stride(self, page_size: int) -> int:
        return self._pages.stride(page_size)

    def stored(self, replica: str, pages: Iterable[bytes]) -> None:
        self._pass_on("stored", replica, tuple(pages))

    def removed(self, replica: str, pages: Iterable[bytes]) -> None:
        self._pass_on("removed", replica, tuple(pages))

    def cleared(self, replica: str) -> None:
        self._pass_on("cleared", replica)

    def _pass_on(self, method: str, *arguments: Any) -> None:
        getattr(self._pages, method)(*arguments)
        self._told.append(Told(method, arguments))


OF_PAGES = ("stored", "removed", "cleared")


def replayed(told: Sequence[Told], router: Router) -> list[str | None]:
    """What a router chooses that is told the same."""
    answers = [
        (one.method, getattr(router.pages if one.method in OF_PAGES else router, one.method)(*one.arguments)) for one in told
    ]
    return [answer for method, answer in answers if method == "choose"]
