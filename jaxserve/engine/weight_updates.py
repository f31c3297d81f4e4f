"""Replaces the weights of an engine between two steps, and keeps what must follow: version, prefix cache, checksums, names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from jaxserve.engine.apart import Apart
from jaxserve.engine.core import EngineCore
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import InvalidRequestError
from jaxserve.executor.held_weights import PIECE_BYTES
from jaxserve.executor.local import LocalExecutor
from jaxserve.models.binding import Params
from jaxserve.weights.live.incoming import Incoming, LiveModel
from jaxserve.weights.recheck import guard_of

logger = logging.getLogger(__name__)

WeightVersion = int | str
_LARGEST = 2**63 - 1  # that a version may be: gRPC tells it, too
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
        self._used: dict[WeightVersion, None] = {}  # every version so far: two sets of weights never have the same
        self.fingerprint = fingerprint
        self._minutes = None if executor.weight_guard is None else executor.weight_guard.minutes

    @property
    def version(self) -> WeightVersion | None:
        return self._core.weight_version

    @property
    def model(self) -> LiveModel:
        if self._model is None:
            self._model = self._make_model()
        return self._model

    @property
    def held(self) -> Params:
        """The parameters as the engine has them now."""
        return self._executor.weights.tree

    def name(self, version: WeightVersion | None) -> None:
        """Say what version the weights are that are there; what is cached of them stays. Raises InvalidRequestError."""
        if version is not None:
            _require_version(version)
            self._used[version] = None
        self._core.weight_version = version

    def update_from_disk(
        self, directory: Path, version: WeightVersion | None, *, mode: PauseMode, force: bool
    ) -> Apart[Incoming, Future[WeightVersion]]:
        """Check a checkpoint, which takes as long as reading it, and put it in the place of the weights; done when it is.

        The old weights stay where CheckpointError says that it does not fit. Raises InvalidRequestError for a version that is not
        newer.
        """
        self.next_version(version, force=force)
        model = self.model
        return Apart(
            lambda: model.check_directory(directory),
            lambda incoming: self.put(incoming, self.next_version(version, force=force), mode=mode),
        )

    def next_version(self, version: WeightVersion | None, *, force: bool = False) -> WeightVersion:
        """The version that an update gets: the one given, or the number after the highest so far.

        Raises InvalidRequestError for a number that is not higher, and for a name that weights had before.
        """
        highest = max((used for used in self._used if isinstance(used, int)), default=0)
        if version is None:
            return highest + 1
        _require_version(version)
        if not force and isinstance(version, int) and version <= highest:
            raise InvalidRequestError(
                f"version {version} is not newer than {highest}, which was served; force takes it all the same", param="version"
            )
        if not force and version in self._used:
            raise InvalidRequestError(f"version {version!r} was served already; force takes it all the same", param="version")
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

        self._core.pause.between(mode, commit, done.set_exception)
        return done

    def _commit(self, incoming: Incoming, version: WeightVersion, piece_bytes: int) -> None:
        weights, core = self._executor.weights, self._core
        if weights.missing is not None and not weights.covers(incoming.sizes):
            raise InvalidRequestError(f"a part of the weights cannot be updated: {weights.missing}", param="partial")
        try:
            self.unwatch()
            weights.replace(core.beating(incoming.parameters()), incoming.sizes, piece_bytes)
        except Exception as error:
            if weights.missing is not None:
                core.cut_off()
                logger.exception("an update of the weights failed half-way: %s", error)
            raise
        finally:
            core.scheduler.cache.flush()
            self.watch()
            self.changed()
        self.name(version)
        self.fingerprint = incoming.fingerprint
        self._told(version, incoming.fingerprint)

    def changed(self) -> None:
        """Refuse requests while anything is missing."""
        executor = self._executor
        held = [executor.weights] if executor.draft_weights is None else [executor.weights, executor.draft_weights]
        missing = [one.missing for one in held if one.missing is not None]
        if not executor.has_cache:
            missing.append("it has no KV cache")
        self._core.pause.asleep = f"the engine serves nothing now: {'; '.join(missing)}" if missing else None

    def unwatch(self) -> None:
        """Let go of what watches over the weights: it holds them."""
        self._executor.weight_guard, self._core.intact = None, None

    def watch(self) -> None:
        """Watch over the weights as they are now, if that is wanted and they are there."""
        if self._minutes is None or self._executor.weights.missing is not None:
            return
        guard = guard_of(self._executor.weights.tree, self._minutes)
        self._executor.weight_guard, self._core.intact = guard, guard.require_intact
        guard.start()


def _require_version(version: object) -> None:
    if isinstance(version, bool) or not isinstance(version, int | str) or version == "":
        raise InvalidRequestError(f"version must be an integer or a name, not {version!r}", param="version")
    if isinstance(version, int) and abs(version) > _LARGEST:
        raise InvalidRequestError(f"version must be at most {_LARGEST}, got {version}", param="version")
