"""Records requests as their front end sees them: counts, latencies, tokens, and whether they met their objective."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import Instruments
from jaxserve.types import ServiceClass

FLUSH_SECONDS = 0.25  # tokens are recorded in bulk, but not later than this

# The few lengths of prompts that metrics tell apart, for a long prompt's first token may take longer.
_BOUNDS = (1024, 4096, 16384, 65536)  # tokens
TIERS = ("1k", "4k", "16k", "64k", "over_64k")


@dataclass(frozen=True, slots=True)
class Objective:
    """A service level objective; a request is within it if both hold, and each of its sequences has its tokens in time.

    Attributes:
        first_token: seconds from arrival to the first token, at most.
        inter_token: mean seconds between a sequence's tokens, at most.
    """

    first_token: float = 1.0
    inter_token: float = 0.05


class _Group:
    def __init__(self, instruments: Instruments, labels: tuple[str, str, str]) -> None:
        self._labels = labels
        self._success = instruments.counter(catalogue.REQUEST_SUCCESS)
        counter, histogram = instruments.counter, instruments.histogram
        self.within_slo = counter(catalogue.REQUESTS_WITHIN_SLO).labels(*labels)
        self.prompt_tokens = counter(catalogue.PROMPT_TOKENS).labels(*labels)
        self.generation_tokens = counter(catalogue.GENERATION_TOKENS).labels(*labels)
        self.goodput_tokens = counter(catalogue.GOODPUT_TOKENS).labels(*labels)
        self.first_token = histogram(catalogue.TIME_TO_FIRST_TOKEN).labels(*labels)
        self.inter_token = histogram(catalogue.INTER_TOKEN_LATENCY).labels(*labels)
        self.e2e = histogram(catalogue.E2E_LATENCY).labels(*labels)
        self.queue = histogram(catalogue.QUEUE_TIME).labels(*labels)
        self.prefill = histogram(catalogue.PREFILL_TIME).labels(*labels)
        self.decode = histogram(catalogue.DECODE_TIME).labels(*labels)
        self.prompt_size = histogram(catalogue.REQUEST_PROMPT_TOKENS).labels(*labels)
        self.output_size = histogram(catalogue.REQUEST_GENERATION_TOKENS).labels(*labels)
        self.tokens = 0  # not written yet
        self.gaps: list[float] = []  # nor these

    def ended(self, reason: str, tokens: int) -> None:
        self._success.labels(*self._labels, reason).inc()
        self.output_size.observe(tokens)

    def flush(self) -> None:
        if self.tokens:
            self.generation_tokens.inc(self.tokens)
            self.tokens = 0
        if self.gaps:
            self.inter_token.observe_many(self.gaps)
            self.gaps = []


class RequestRecorder:
    """Records the requests of one front end; every method belongs to the thread of its event loop.

    Args:
        objective: what requests of interactive classes are held to; batch is promised nothing, so all of it is in time.
    """

    def __init__(self, instruments: Instruments, model: str, objective: Objective) -> None:
        counter = instruments.counter
        self._instruments = instruments
        self._model = model
        self.objective = objective
        self._received = counter(catalogue.REQUESTS_RECEIVED).labels(model)
        self._finished = counter(catalogue.REQUESTS_FINISHED).labels(model)
        self._aborted = counter(catalogue.REQUESTS_ABORTED)
        self._rejected = counter(catalogue.REQUESTS_REJECTED)
        self._groups: dict[tuple[ServiceClass, str], _Group] = {}
        self._active = 0
        self._flushed = 0.0
        self.group(ServiceClass.INTERACTIVE_PAID, 1)  # opens the file of histograms while its directory is there

    def received(self) -> RequestRecord:
        """A request arrived; its record must be closed."""
        self._received.inc()
        self._active += 1
        return RequestRecord(self)

    def flush(self, now: float) -> None:
        """Write the tokens that were gathered, if the last time is long enough ago; `now` is clock time."""
        if now - self._flushed >= FLUSH_SECONDS:
            self._flushed = now
            self._write()

    def group(self, service_class: ServiceClass, prompt_tokens: int) -> _Group:
        key = service_class, context_tier(prompt_tokens)
        if key not in self._groups:
            self._groups[key] = _Group(self._instruments, (self._model, service_class.value, key[1]))
        return self._groups[key]

    def closed(self, outcome: str, reason: str) -> None:
        self._active -= 1
        if outcome == "finished":
            self._finished.inc()
        else:
            (self._rejected if outcome == "rejected" else self._aborted).labels(self._model, reason).inc()
        if not self._active:  # nothing may come for a long time
            self._write()

    def _write(self) -> None:
        for group in self._groups.values():
            group.flush()


@dataclass(slots=True)
class _SequenceRecord:
    first: float
    last: float
    tokens: int = 0


@dataclass(slots=True)
class RequestRecord:
    """One request on its way. `prepared`, `started`, any number of `tokens`, `ended`; then once `closed` by one of three.

    Times are of the clock that `arrival` is of, seconds.
    """

    _recorder: RequestRecorder
    _group: _Group | None = None
    _batch: bool = False
    _arrival: float = 0.0
    _queue: float = 0.0
    _first: float | None = None
    _ended: float = 0.0
    _sequences: dict[int, _SequenceRecord] = field(default_factory=dict)
    _closed: bool = False

    def prepared(self, service_class: ServiceClass, prompt_tokens: int, arrival: float) -> None:
        self._group = self._recorder.group(service_class, prompt_tokens)
        self._batch = service_class is ServiceClass.BATCH
        self._arrival = arrival

    def started(self, prompt_tokens: int, queue: float, now: float) -> None:
        """Its first token came, after `queue` seconds without a step."""
        group = self._known_group()
        self._first, self._queue = now, queue
        group.prompt_tokens.inc(prompt_tokens)
        group.prompt_size.observe(prompt_tokens)
        group.first_token.observe(now - self._arrival)
        group.queue.observe(queue)
        group.prefill.observe(max(0.0, now - self._arrival - queue))

    def tokens(self, index: int, count: int, now: float) -> None:
        group = self._known_group()
        group.tokens += count
        sequence = self._sequences.get(index)
        if sequence is None:
            self._sequences[index] = _SequenceRecord(now, now)
            group.gaps += [0.0] * (count - 1)
            return
        group.gaps.append(now - sequence.last)
        if count > 1:
            group.gaps += [0.0] * (count - 1)
        sequence.last = now

    def ended(self, index: int, reason: str, tokens: int, now: float) -> None:
        """Sequence `index` ended, for a finish reason and after so many tokens."""
        if tokens:
            self._sequences[index].tokens = tokens
        self._ended = now
        self._known_group().ended(reason, tokens)

    def finished(self) -> None:
        """Every sequence ended by itself, the last one when it was said so; its reader may have taken longer."""
        group = self._known_group()
        group.e2e.observe(self._ended - self._arrival)
        for sequence in self._sequences.values():
            group.decode.observe(sequence.last - sequence.first)
        if self._within(self._recorder.objective):
            group.within_slo.inc()
            group.goodput_tokens.inc(sum(sequence.tokens for sequence in self._sequences.values()))
        self._close("finished", "")

    def aborted(self, reason: str) -> None:
        """It was cut off: "client_gone", "abort", or the code of the error that it ended with."""
        self._close("aborted", reason)

    def rejected(self, reason: str) -> None:
        """It never began; `reason` is the error's code."""
        self._close("rejected", reason)

    def _close(self, outcome: str, reason: str) -> None:
        assert not self._closed, "a request ends once"
        self._closed = True
        self._recorder.closed(outcome, reason)

    def _known_group(self) -> _Group:
        assert self._group is not None, "a request is prepared before it begins"
        return self._group

    def _within(self, objective: Objective) -> bool:
        if self._batch:
            return True
        if self._first is None or self._first - self._arrival > objective.first_token:
            return False
        return all(
            sequence.last - sequence.first <= objective.inter_token * (sequence.tokens - 1)
            for sequence in self._sequences.values()
        )


def context_tier(prompt_tokens: int) -> str:
    """The tier of a prompt: the first whose bound it does not exceed ("1k": up to 1,024 tokens)."""
    return TIERS[bisect_left(_BOUNDS, prompt_tokens)]
