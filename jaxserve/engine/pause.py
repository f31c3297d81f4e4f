"""Stops an engine between two steps, at once or when what runs has ended, and lets it go on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, NamedTuple, Protocol

import msgspec

from jaxserve.errors import CancelledRequestError, InvalidRequestError, OverloadedError
from jaxserve.scheduler.request import Update
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.types import FinishReason

PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of sequences that run: they end now, they are waited for, or they go on afterwards."""
MODES = ("abort", "wait", "keep")


class Steps(Protocol):
    """What a pause needs of an engine's core; see there."""

    scheduler: Scheduler

    @property
    def is_drained(self) -> bool: ...

    def settle(self) -> None: ...

    def cut_off(self, names: Collection[str] | None = None) -> None: ...


class Waiting(NamedTuple):
    """What is done when nothing runs any more, and who is told if that never comes."""

    then: Callable[[], None]
    failed: Callable[[Exception], None]


class Pause:
    """Whether an engine runs its requests; called by its thread.

    Attributes:
        is_on: whether no step is planned.
        asleep: why requests are refused; None while they are not. What comes during a mere pause waits.
    """

    def __init__(self, core: Steps) -> None:
        self._core = core
        self._then: list[Waiting] = []
        self.is_on = False
        self.asleep: str | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for what runs."""
        return bool(self._then)

    def require_awake(self) -> None:
        """Raise OverloadedError if requests are refused."""
        if self.asleep is not None:
            raise OverloadedError(self.asleep, retry_after=1.0)

    def between(self, mode: PauseMode, then: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Call `then` when no step is in flight: now, or with "wait" when what runs has ended and before anything else begins.

        `failed` is called in its place if the engine ends before. Raises InvalidRequestError for another mode, and what `then`
        raises if it is called now.
        """
        if mode not in MODES:
            raise InvalidRequestError(f"mode must be {', '.join(MODES)}, not {mode!r}", param="mode")
        if mode == "abort":
            self._core.cut_off()
        elif mode == "keep" or self.is_on:
            self._core.settle()
        elif not self._core.is_drained:
            self._core.scheduler.batcher.holds = True
            self._then.append(Waiting(then, failed))
            return
        then()

    def drained(self) -> None:
        """What ran has ended: do what waited for it."""
        waiting, self._then = self._then, []
        self._core.scheduler.batcher.holds = False
        for one in waiting:
            one.then()

    def fail(self, error: Exception) -> None:
        """What ran never ends: tell whoever waits for it."""
        waiting, self._then = self._then, []
        for one in waiting:
            one.failed(error)

    def stop(self) -> None:
        self.is_on = True

    def go_on(self) -> None:
        self.is_on = False


def cut_off(scheduler: Scheduler, names: Collection[str] | None = None) -> list[Update]:
    """End every sequence, or those of the requests of these names. One whose prompt was being scored fails, for half of the
    scores are none.
    """
    why = "was cut off: the weights were updated or the engine was paused" if names is None else "was aborted"
    updates = []
    for sequence in list(scheduler.sequences.values()):
        if names is not None and sequence.request.name not in names:
            continue
        name, num_cached, queue_time = sequence.request.id, sequence.num_cached, sequence.queue_time
        if sequence.is_read or not sequence.task.generates:
            updates.append(Update(name, error=CancelledRequestError(f"the request {why}")))
        else:
            updates.append(Update(name, finish_reason=FinishReason.ABORT, num_cached=num_cached, queue_time=queue_time))
    scheduler.abort([update.id for update in updates])
    return updates


def stamped(updates: list[Update], version: int | str | None) -> list[Update]:
    """Tokens with the version of the weights that they are of, if it has a name."""
    if version is None:
        return updates
    return [one if one.token is None else msgspec.structs.replace(one, weights=version) for one in updates]
