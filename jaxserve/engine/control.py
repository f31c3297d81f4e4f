"""What an operator or a trainer may do to a running engine: pause it, replace its weights, put it to sleep."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from jaxserve.engine.apart import Apart
from jaxserve.engine.pause import Pause, PauseMode, Steps

Result = TypeVar("Result")


class WeightInfo(msgspec.Struct, frozen=True, array_like=True):
    """What an engine serves now.

    Attributes:
        version: of its weights; None for those that it began with, if nobody named them.
        fingerprint: of the model.
        is_paused: whether requests wait.
        asleep: why requests are refused; None while they are not.
    """

    version: int | str | None
    fingerprint: str
    is_paused: bool
    asleep: str | None


class Weights(Protocol):
    """Of an engine; see `weight_updates.WeightUpdates`."""

    fingerprint: str

    @property
    def version(self) -> int | str | None: ...

    def name(self, version: int | str | None) -> None: ...

    def update_from_disk(
        self, directory: Path, version: int | str | None, *, mode: PauseMode, force: bool
    ) -> Apart[Any, Future[int | str]]: ...


class Sleeper(Protocol):
    """Of an engine; see `sleeping.Sleep`."""

    def sleep(self, level: int) -> None: ...

    def wake_up(self, tags: tuple[str, ...] | None) -> None: ...


class EngineControl:
    """Called by the thread that drives the engine, between two turns. What takes turns to be done is told by a future."""

    def __init__(self, core: Steps, pause: Pause, weights: Weights, sleeper: Sleeper) -> None:
        self._core = core
        self._pause = pause
        self._weights = weights
        self._sleeper = sleeper

    def info(self) -> WeightInfo:
        weights = self._weights
        return WeightInfo(weights.version, weights.fingerprint, self._pause.is_on, self._pause.asleep)

    def pause(self, mode: PauseMode, *, clear_cache: bool) -> Future[WeightInfo]:
        """Plan no more steps: done when none is in flight and, by the mode, what runs has ended. What comes meanwhile waits."""
        done: Future[WeightInfo] = Future()

        def stop() -> None:
            self._pause.stop()
            if clear_cache and not self._core.scheduler.num_running:
                self._core.scheduler.cache.flush()
            done.set_result(self.info())

        self._pause.between(mode, stop, done.set_exception)
        return done

    def resume(self) -> WeightInfo:
        self._pause.go_on()
        return self.info()

    def update_from_disk(
        self, directory: Path, version: int | str | None, *, mode: PauseMode, force: bool
    ) -> Apart[Any, Future[WeightInfo]]:
        update = self._weights.update_from_disk(directory, version, mode=mode, force=force)
        return Apart(update.work, lambda checked: _then(update.then(checked), self.info))

    def name_weights(self, version: int | str) -> WeightInfo:
        self._weights.name(version)
        return self.info()

    def sleep(self, level: int) -> WeightInfo:
        self._sleeper.sleep(level)
        return self.info()

    def wake_up(self, tags: tuple[str, ...] | None) -> WeightInfo:
        self._sleeper.wake_up(tags)
        return self.info()

    def abort_all(self) -> WeightInfo:
        self._core.cut_off()
        return self.info()


def _then(done: Future[int | str], answer: Callable[[], Result]) -> Future[Result]:
    """The answer once something is done, in the thread that did it."""
    answered: Future[Result] = Future()

    def tell(one: Future[int | str]) -> None:
        error = one.exception()
        if error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(answer())

    done.add_done_callback(tell)
    return answered
