"""From the engine's updates to the events of a request that is pooled: Started, then Finished with the numbers."""

from __future__ import annotations

from jaxserve.clock import Clock
from jaxserve.engine.events import Event, Finished, Started, Timing, Usage
from jaxserve.engine.outputs import Pushed
from jaxserve.errors import JaxserveError
from jaxserve.pooling.params import PoolingParams
from jaxserve.pooling.pooler import Pooler
from jaxserve.pooling.vectors import PooledChunks
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.types import FinishReason


class PooledOutputs:
    """Events of one request that is pooled; see RequestOutputs, whose place it takes."""

    def __init__(self, request_id: str, request: EngineRequest, pooler: Pooler, params: PoolingParams, clock: Clock) -> None:
        self.request_id = request_id
        self.started = False
        self.was_aborted = False
        self.done = False
        self.error: JaxserveError | None = None
        self._request = request
        self._clock = clock
        self._chunks = PooledChunks(pooler, params, len(request.prompt))

    @property
    def num_active(self) -> int:
        return 0 if self.done else 1

    @property
    def ids(self) -> list[str]:
        return [self._request.id]

    @property
    def active_ids(self) -> list[str]:
        return [] if self.done else self.ids

    def push(self, update: Update) -> Pushed:
        """Take in one update."""
        if self.done:
            return Pushed()
        if update.error is not None:
            return Pushed(end=self.fail(update.error), error=update.error)
        if update.vectors is not None:
            self._chunks.add(update.vectors.rows)
        if update.finish_reason is None:
            return Pushed()
        started = Started(self.request_id, self._request.prompt, update.num_cached, update.queue_time)
        self.started = True
        return Pushed(events=[started, self._finished(update)])

    def fail(self, error: JaxserveError) -> list[str]:
        """End the request with an error. Returns its sequence, if that had not finished."""
        self.error = error
        active, self.done = self.active_ids, True
        return active

    def abort(self) -> list[Event]:
        if self.done:
            return []
        self.was_aborted = True
        return [self._finished(Update(self._request.id, finish_reason=FinishReason.ABORT))]

    def _finished(self, update: Update) -> Finished:
        assert update.finish_reason is not None, "the last update"
        self.done = True
        aborted = update.finish_reason is FinishReason.ABORT
        seconds = self._clock.now() - self._request.arrival
        return Finished(
            self.request_id,
            0,
            FinishReason.ABORT if aborted else FinishReason.STOP,
            None,
            Usage(len(self._request.prompt), 0, update.num_cached),
            Timing(update.queue_time, seconds, seconds),
            update.resumed,
            pooled=None if aborted else self._chunks.pooled(),
        )
