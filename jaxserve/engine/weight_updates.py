"""Replaces the weights of an engine between two steps, and keeps what must follow: version, prefix cache, checksums, names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from jaxserve.engine.core import EngineCore
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import InvalidRequestError
from jaxserve.executor.held_weights import PIECE_BYTES
from jaxserve.executor.local import LocalExecutor
from jaxserve.weights.live.incoming import Incoming, LiveModel
from jaxserve.weights.live.mapping import ParamMapping
from jaxserve.weights.recheck import guard_of

logger = logging.getLogger(__name__)

WeightVersion = int | str
NewWeights = Callable[[WeightVersion | None, str], None]
"""Told of the version and the fingerprint of weights that were replaced."""


class WeightUpdates:
    """Updates of one engine's weights. Its methods are called by the thread that drives the engine, between two turns.

    Args:
        model: what takes a program's trees; made when it is first needed.
        told: of every update that was made.
    """

    def __init__(
        self, core: EngineCore, executor: LocalExecutor, model: Callable[[], LiveModel], told: NewWeights, fingerprint: str
    ) -> None:
        self._core = core
        self._executor = executor
        self._make_model = model
        self._model: LiveModel | None = None
        self._told = told
        self.fingerprint = fingerprint

    @property
    def version(self) -> WeightVersion | None:
        return self._core.weight_version

    @property
    def model(self) -> LiveModel:
        if self._model is None:
            self._model = self._make_model()
        return self._model

    def name(self, version: WeightVersion | None) -> None:
        """Say what version the weights are that are there; what is cached of them stays."""
        self._core.weight_version = version

    def update(
        self,
        params: Any,
        version: WeightVersion | None = None,
        *,
        mode: PauseMode = "abort",
        partial: bool = False,
        mapping: ParamMapping = "auto",
        piece_bytes: int = PIECE_BYTES,
        force: bool = False,
    ) -> Future[WeightVersion]:
        """Check a tree and put it in the place of the weights; done when it is.

        Raises, with the old weights in place, CheckpointError or ConfigError for a tree that does not fit, InvalidRequestError
        for a version that is not newer.
        """
        following = self.next_version(version, force=force)
        return self.put(self.model.check(params, mapping, partial=partial), following, mode=mode, piece_bytes=piece_bytes)

    def next_version(self, version: WeightVersion | None, *, force: bool = False) -> WeightVersion:
        """The version that an update gets: the one given, or the next number. Raises InvalidRequestError for an older number."""
        current = self._core.weight_version
        if version is None:
            return current + 1 if isinstance(current, int) else 1
        if isinstance(version, bool) or not isinstance(version, int | str) or version == "":
            raise InvalidRequestError(f"version must be an integer or a name, not {version!r}", param="version")
        if not force and isinstance(current, int) and isinstance(version, int) and version <= current:
            raise InvalidRequestError(
                f"version {version} is not newer than {current}, which is served; force takes it all the same", param="version"
            )
        if not force and version == current:
            raise InvalidRequestError(f"version {version!r} is served already; force takes it all the same", param="version")
        return version

    def put(
        self, incoming: Incoming, version: WeightVersion, *, mode: PauseMode, piece_bytes: int = PIECE_BYTES
    ) -> Future[WeightVersion]:
        """Put checked weights in the place of those that are there."""
        if piece_bytes < 1:
            raise InvalidRequestError(f"piece_bytes must be at least 1, got {piece_bytes}", param="piece_bytes")
        done: Future[WeightVersion] = Future()

        def commit() -> None:
            try:
                self._commit(incoming, version, piece_bytes)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(version)

        self._core.pause.between(mode, commit)
        return done

    def _commit(self, incoming: Incoming, version: WeightVersion, piece_bytes: int) -> None:
        executor, core = self._executor, self._core
        guard, executor.weight_guard, core.intact = executor.weight_guard, None, None  # it would hold the old ones
        minutes = None if guard is None else guard.minutes
        del guard
        try:
            executor.weights.replace(incoming.parameters(), incoming.sizes, piece_bytes)
        except Exception as error:
            if executor.weights.missing is not None:
                core.cut_off()
                core.pause.asleep = f"the engine has no whole weights until they are updated: {error!r}"
                logger.exception("an update of the weights failed half-way")
            raise
        finally:
            core.scheduler.cache.flush()
            if executor.weights.missing is None:
                self._watch(minutes)
        if executor.weights.missing is None:
            core.pause.asleep = None
        self.name(version)
        self.fingerprint = incoming.fingerprint
        self._told(version, incoming.fingerprint)

    def _watch(self, minutes: float | None) -> None:
        if minutes is None:
            return
        guard = guard_of(self._executor.weights.tree, minutes)
        self._executor.weight_guard, self._core.intact = guard, guard.require_intact
        guard.start()
