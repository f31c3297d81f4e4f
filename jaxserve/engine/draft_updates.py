"""Replaces the weights of a draft model, or head, between two steps. No token is another for it: it only guesses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from jaxserve.engine.core import EngineCore
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import InvalidRequestError
from jaxserve.executor.held_weights import HeldWeights
from jaxserve.weights.live.incoming import Incoming, LiveModel

logger = logging.getLogger(__name__)


class DraftUpdates:
    """Of one engine. Its methods are called by the thread that drives the engine, between two turns.

    Version, fingerprint and cached prefixes stay: they are the target's. What the draft has cached is of its old weights, which
    makes worse guesses of it and nothing else.

    Args:
        model: what takes the draft's trees; made when it is first needed.
        changed: told when weights are missing, or are there again.
    """

    def __init__(
        self, core: EngineCore, weights: HeldWeights, model: Callable[[], LiveModel], changed: Callable[[], None]
    ) -> None:
        self._core = core
        self._weights = weights
        self._make_model = model
        self._model: LiveModel | None = None
        self._changed = changed

    @property
    def model(self) -> LiveModel:
        if self._model is None:
            self._model = self._make_model()
        return self._model

    def next_version(self, version: int | str | None, *, force: bool) -> None:
        """A draft's weights have none. Raises InvalidRequestError for one."""
        if version is not None:
            raise InvalidRequestError("version is of the target's weights: leave it out for a draft's", param="version")

    def put(self, incoming: Incoming, version: None, *, mode: PauseMode) -> Future[None]:
        """Put checked weights in the place of those that are there."""
        done: Future[None] = Future()

        def commit() -> None:
            try:
                self._commit(incoming)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._core.pause.between(mode, commit, done.set_exception)
        return done

    def _commit(self, incoming: Incoming) -> None:
        weights = self._weights
        try:
            weights.replace(self._core.beating(incoming.parameters()), incoming.sizes)
        except Exception as error:
            if weights.missing is not None:
                self._core.cut_off()
                logger.exception("an update of the draft's weights failed half-way: %s", error)
            raise
        finally:
            self._changed()
