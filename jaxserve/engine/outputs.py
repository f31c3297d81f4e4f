"""From the engine's updates to a client's events: tokens to text, stop strings, log-probabilities, usage."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxserve.clock import Clock
from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started, Timing, TokenLogprob, Usage
from jaxserve.engine.prompt_logprobs import PromptLogprobs
from jaxserve.engine.weight_ranges import WeightRanges
from jaxserve.errors import JaxserveError, contained
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.step.plan import LogprobRows
from jaxserve.tokenizer.base import Tokenizer, token_text
from jaxserve.tokenizer.detokenizer import Detokenizer
from jaxserve.tokenizer.stop_strings import StopStrings
from jaxserve.types import FinishReason

logger = logging.getLogger(__name__)

NO_TOKENS: frozenset[int] = frozenset()


@dataclass(slots=True)
class _SequenceText:
    id: str
    index: int
    detokenizer: Detokenizer | None
    stop: StopStrings | None
    num_tokens: int = 0
    resumed: int = 0
    first_token: float | None = None
    finished: bool = False
    versions: WeightRanges = field(default_factory=WeightRanges)


@dataclass(slots=True)
class Pushed:
    """What an update gave.

    Attributes:
        end: sequences that the engine must end: a stop string matched, or the request failed.
        error: what the request as a whole ended with, after the events.
    """

    events: list[Event] = field(default_factory=list)
    end: list[str] = field(default_factory=list)
    error: JaxserveError | None = None


class RequestOutputs:
    """Events of one request, its `n` sequences together.

    Attributes:
        started: whether Started was given out.
        was_aborted: whether a sequence was cut off by `abort`.
        error: what the request failed with, if it did.

    Args:
        tokenizer: None gives tokens without text.
        clock: the clock of the requests' arrival.
        shown: special tokens that are text all the same.
    """

    def __init__(
        self,
        request_id: str,
        requests: Sequence[EngineRequest],
        tokenizer: Tokenizer | None,
        clock: Clock,
        shown: frozenset[int] = NO_TOKENS,
    ) -> None:
        self.request_id = request_id
        self._prompt = requests[0].prompt
        self._params: SamplingParams = requests[0].params
        self._arrival = requests[0].arrival
        self._tokenizer = tokenizer
        self._clock = clock
        self._shown = shown
        self.started = False
        self.was_aborted = False
        self.error: JaxserveError | None = None
        self._queue_time = 0.0
        self._num_cached = 0
        first = max(1, self._params.prompt_logprobs_start)
        self._scores = PromptLogprobs(self._prompt, first, self._params.prompt_logprobs or 0, self._position)
        # What goes on with tokens that it had shows them first, as if they had just come.
        self._given = [Update(request.id, token) for request in requests for token in request.output]
        self._num_given = {request.id: len(request.output) for request in requests}
        self._early: list[Update] = []  # tokens of other sequences while the first still scores the prompt
        stops = self._stop_strings()
        self._sequences = {
            request.id: _SequenceText(request.id, index, self._detokenizer(), stops and stops.another())
            for index, request in enumerate(requests)
        }
        self._unfinished = len(requests)

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    @property
    def num_active(self) -> int:
        return self._unfinished

    @property
    def ids(self) -> list[str]:
        return list(self._sequences)

    @property
    def active_ids(self) -> list[str]:
        return [sequence.id for sequence in self._sequences.values() if not sequence.finished]

    def push(self, update: Update) -> Pushed:
        """Take in one update of one of the sequences.

        Whatever goes wrong here, such as a tokenizer that fails, is an InternalError of this request and of no other.
        """
        try:
            return self._take(update)
        except Exception as error:
            logger.exception("the output of request %s could not be made", self.request_id)
            return self._failed(contained(error, "making its output"))

    def fail(self, error: JaxserveError) -> list[str]:
        """End the request as a whole with an error. Returns the sequences that had not finished."""
        self.error = error
        active = self.active_ids
        for sequence in self._sequences.values():
            sequence.finished = True
        self._unfinished = 0
        return active

    def _failed(self, error: JaxserveError) -> Pushed:
        return Pushed(end=self.fail(error), error=error)

    def _take(self, update: Update) -> Pushed:
        pushed = Pushed()
        sequence = self._sequences[update.id]
        if sequence.finished:
            return pushed
        if update.error is not None:
            return self._failed(update.error)
        if update.prompt_logprobs is not None and sequence.index == 0:
            self._scores.add(update.prompt_logprobs.rows)
        if update.token is None and update.finish_reason is None:
            return pushed
        reads = self._params.prompt_logprobs is not None and len(self._scores) < len(self._prompt)
        if reads and update.finish_reason is not FinishReason.ABORT:
            self._early.append(update)
            return pushed
        if not self.started:
            pushed.events.append(self._start(update))
            for given in self._given:
                self._take_token(self._sequences[given.id], given, pushed)
        if self._early:
            early, self._early = self._early, []
            for ready in early:
                self._take_token(self._sequences[ready.id], ready, pushed)
        self._take_token(sequence, update, pushed)
        return pushed

    def abort(self) -> list[Event]:
        events: list[Event] = []
        self.was_aborted = True
        for sequence in self._sequences.values():
            if not sequence.finished:
                events.append(self._finish(sequence, FinishReason.ABORT, None))
        return events

    def _start(self, update: Update) -> Started:
        self.started = True
        self._queue_time, self._num_cached = update.queue_time, update.num_cached
        scores = self._scores if self._params.prompt_logprobs is not None else None
        return Started(self.request_id, self._prompt, update.num_cached, update.queue_time, scores)

    def _take_token(self, sequence: _SequenceText, update: Update, pushed: Pushed) -> None:
        token = update.token
        if sequence.finished:
            return
        sequence.resumed = update.resumed
        if token is None:
            assert update.finish_reason is not None, "an update without a token ends its sequence here"
            pushed.events.append(self._finish(sequence, update.finish_reason, None))
            return
        first_index = sequence.num_tokens
        sequence.num_tokens += 1
        if first_index >= self._num_given[sequence.id]:  # of given tokens nobody here knows what they are of
            sequence.versions.add(first_index, update.weights)
        if sequence.first_token is None:
            sequence.first_token = self._clock.now()
        reason, matched = update.finish_reason, update.matched
        text = self._text(sequence, token, reason)
        released, stopped = text, None
        if sequence.stop is not None:
            if sequence.num_tokens > self._params.min_tokens:
                watched = sequence.stop.push(text)
                released, stopped = watched.text, watched.matched
            if stopped is None and reason is not None:
                released += sequence.stop.flush().text
        if stopped is not None:
            if reason is None:
                pushed.end.append(sequence.id)
            reason = FinishReason.STOP
        logprobs = None
        if update.logprobs is not None:
            logprobs = (self._entries(token, *update.logprobs.first(self._params.logprobs or 0)),)
        pushed.events.append(Delta(self.request_id, sequence.index, released, (token,), first_index, logprobs))
        if reason is not None:
            pushed.events.append(self._finish(sequence, reason, stopped if stopped is not None else matched))

    def _text(self, sequence: _SequenceText, token: int, reason: FinishReason | None) -> str:
        """Text that became certain with this token; a stop token's own text is left out unless asked for."""
        if sequence.detokenizer is None:
            return ""
        hidden = reason is FinishReason.STOP and not self._params.include_stop_str_in_output
        text = "" if hidden else sequence.detokenizer.push((token,))
        return text if reason is None else text + sequence.detokenizer.flush()

    def _finish(self, sequence: _SequenceText, reason: FinishReason, matched: str | int | None) -> Finished:
        sequence.finished = True
        self._unfinished -= 1
        now = self._clock.now()
        first = sequence.first_token if sequence.first_token is not None else now
        return Finished(
            self.request_id,
            sequence.index,
            reason,
            matched,
            Usage(len(self._prompt), sequence.num_tokens, self._num_cached),
            Timing(self._queue_time, first - self._arrival, now - self._arrival),
            sequence.resumed,
            sequence.versions.ranges(sequence.num_tokens),
        )

    def _position(self, rows: LogprobRows, row: int, token: int, count: int) -> PositionLogprobs:
        ids, values = rows.top_ids[row, :count].tolist(), rows.top[row, :count].tolist()
        return self._entries(token, float(rows.chosen[row]), int(rows.rank[row]), ids, values)

    def _entries(self, token: int, logprob: float, rank: int, ids: list[int], values: list[float]) -> PositionLogprobs:
        chosen = self._token_logprob(token, logprob, rank)
        top = enumerate(zip(ids, values, strict=True), 1)
        # Where tokens were drawn by a few only, the others are no alternatives.
        could = [self._token_logprob(other, value, place) for place, (other, value) in top if value > -math.inf]
        return PositionLogprobs(chosen, tuple(could))

    def _token_logprob(self, token: int, logprob: float, rank: int) -> TokenLogprob:
        if self._tokenizer is None:
            return TokenLogprob(token, logprob, rank, "", b"")
        return TokenLogprob(token, logprob, rank, token_text(self._tokenizer, token), self._tokenizer.token_bytes(token))

    def _detokenizer(self) -> Detokenizer | None:
        if self._tokenizer is None or self._params.scores_only:
            return None
        skips = self._params.skip_special_tokens
        return Detokenizer(self._tokenizer, self._prompt, skip_special_tokens=skips, shown=self._shown)

    def _stop_strings(self) -> StopStrings | None:
        if not self._params.stop:
            return None
        return StopStrings(self._params.stop, include_in_output=self._params.include_stop_str_in_output)
