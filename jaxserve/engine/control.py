"""What an operator or a trainer may do to a running engine: pause it, replace its weights, put it to sleep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from jaxserve.engine.apart import Apart
from jaxserve.engine.pause import Pause, PauseMode, Steps

Result = TypeVar("Result")

SentMapping = Literal["auto", "hf", "maxtext", "tunix"]
"""How the names of arrays that another process sends are read; see `weights.live.mapping`."""


class SentAdapter(msgspec.Struct, frozen=True):
    """An adapter (LoRA) that another process sends.

    Attributes:
        name: that requests give as their model.
        config: the content of an adapter_config.json, of which `r` and `lora_alpha` are needed.
        tenant: whose it is; None for everybody's.
        in_place: whether it may replace one of the same name.
    """

    name: str
    config: dict[str, Any]
    tenant: str | None = None
    in_place: bool = False


class WeightInfo(msgspec.Struct, frozen=True, array_like=True):
    """What an engine serves now.

    Attributes:
        version: of its weights; None for those that it began with, if nobody named them.
        fingerprint: of the model.
        is_paused: whether requests wait.
        asleep: why requests are refused; None while they are not.
        received_bytes, wanted_bytes: of an update that another process sends: what has come, and of how much.
    """

    version: int | str | None
    fingerprint: str
    is_paused: bool
    asleep: str | None
    received_bytes: int = 0
    wanted_bytes: int = 0


class Weights(Protocol):
    """Of an engine; see `weight_updates.WeightUpdates`."""

    fingerprint: str

    @property
    def version(self) -> int | str | None: ...

    def name(self, version: int | str | None) -> None: ...

    def update_from_disk(
        self, directory: Path, version: int | str | None, *, mode: PauseMode, force: bool
    ) -> Apart[Any, Future[int | str]]: ...


class Transfer(Protocol):
    """Of an engine; see `weight_transfer.WeightTransfer`."""

    @property
    def progress(self) -> tuple[int, int]: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def start(
        self,
        update_id: str,
        names: Sequence[str],
        dtype_names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        mapping: SentMapping,
        partial: bool,
        draft: bool,
        adapter: SentAdapter | None,
    ) -> None: ...

    def put(self, update_id: str, content: bytes) -> Callable[[], None]: ...

    def finish(
        self, update_id: str | None, version: int | str | None, *, mode: PauseMode, force: bool
    ) -> Apart[Any, Future[Any]]: ...


class Checks(Protocol):
    """Of an engine; see `weight_checks.WeightChecks`."""

    num_devices: int

    def checksums(self) -> Callable[[], dict[str, str]]: ...

    def reset(self) -> Future[int | str]: ...


class Sleeper(Protocol):
    """Of an engine; see `sleeping.Sleep`."""

    def sleep(self, level: int) -> None: ...

    def wake_up(self, tags: tuple[str, ...] | None) -> None: ...


class EngineControl:
    """Called by the thread that drives the engine, between two turns. What takes turns to be done is told by a future.

    Attributes:
        transfer: of weights that another process sends.
        checks: whether they arrived.
    """

    def __init__(
        self, core: Steps, pause: Pause, weights: Weights, sleeper: Sleeper, *, transfer: Transfer, checks: Checks
    ) -> None:
        self._core = core
        self._pause = pause
        self._weights = weights
        self._sleeper = sleeper
        self.transfer = transfer
        self.checks = checks

    def info(self) -> WeightInfo:
        weights = self._weights
        return WeightInfo(weights.version, weights.fingerprint, self._pause.is_on, self._pause.asleep, *self.transfer.progress)

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
        return self._updating(self._weights.update_from_disk(directory, version, mode=mode, force=force))

    def put_piece(self, update_id: str, content: bytes) -> Apart[WeightInfo, WeightInfo]:
        put = self.transfer.put(update_id, content)

        def keep() -> WeightInfo:
            put()
            return self.info()

        return Apart(keep, None)

    def finish_update(
        self, update_id: str | None, version: int | str | None, *, mode: PauseMode, force: bool
    ) -> Apart[Any, Future[WeightInfo]]:
        return self._updating(self.transfer.finish(update_id, version, mode=mode, force=force))

    def reset_weights(self) -> Future[WeightInfo]:
        return _then(self.checks.reset(), self.info)

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

    def _updating(self, update: Apart[Any, Future[Any]]) -> Apart[Any, Future[WeightInfo]]:
        then = update.then
        assert then is not None, "checked weights are put in place between two turns"
        return Apart(update.work, lambda checked: _then(then(checked), self.info))


def _then(done: Future[Any], answer: Callable[[], Result]) -> Future[Result]:
    """The answer once something is done, in the thread that did it."""
    answered: Future[Result] = Future()

    def tell(one: Future[Any]) -> None:
        error = one.exception()
        if error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(answer())

    done.add_done_callback(tell)
    return answered
