"""A sequence on its way through the scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Protocol

import msgspec
import numpy as np

from jaxserve.cache.sequence_pages import SequencePages
from jaxserve.errors import InvalidRequestError, JaxserveError
from jaxserve.sampling.options import RowSource
from jaxserve.sampling.params import SamplingParams
from jaxserve.step.plan import Floats, Ints, LogprobRows
from jaxserve.step.tasks import GENERATE, Task
from jaxserve.types import FinishReason, ServiceClass

NO_SLOT = -1
RANKS = MappingProxyType({service_class: rank for rank, service_class in enumerate(ServiceClass)})
PREEMPTIONS_A_CLASS = 2  # after so many a sequence counts as one class higher


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence as the engine takes it in: tokens only, already validated.

    Attributes:
        id: unique among active sequences: the request's name, and two parts that have no slash.
        prompt: token ids, not empty, shorter than the context.
        params: how to sample; `n` and stop strings are not the engine's concern.
        max_tokens: output tokens at most, resolved against the context; 0 if none is generated.
        seed: 64-bit seed of this sequence's samples.
        eos_token_ids: tokens that end it unless `ignore_eos`.
        cache_root: hash of the prefix-cache namespace it may share.
        arrival: clock time of arrival, seconds.
        tenant: whose it is.
        service_class: its precedence.
        parent: the sequence of the same request whose prompt pages it shares, None for the first one.
        queue_deadline: clock time by which it must have started.
        deadline: clock time by which it must have ended.
        own_queue_timeout: whether the request itself said how long it waits.
        of_list: whether it belongs to a list of prompts whose first came before.
        task: name of what it wants (`step.tasks`).
        output: tokens that another engine chose for it already: it goes on behind them.
        num_readings: readings of its prompt that another engine gave already.
        resumed: whether another engine had taken it in before.
        adapter: its adapter: as it comes the name, in a scheduler the key, which tells contents apart; empty for none.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    seed: int
    eos_token_ids: frozenset[int]
    cache_root: bytes
    arrival: float
    tenant: str = ""
    service_class: ServiceClass = ServiceClass.INTERACTIVE_PAID
    parent: str | None = None
    queue_deadline: float = math.inf
    deadline: float = math.inf
    own_queue_timeout: bool = False
    of_list: bool = False
    task: str = GENERATE.name
    output: tuple[int, ...] = ()
    num_readings: int = 0
    resumed: bool = False
    adapter: str = ""

    @property
    def name(self) -> str:
        """What its client calls the request."""
        return self.id.rsplit("/", 2)[0]

    @property
    def may_be_shed(self) -> bool:
        """Whether an overload is a reason to refuse it."""
        return not (self.own_queue_timeout or self.of_list or self.resumed or self.service_class is ServiceClass.BATCH)

    @property
    def start_limit(self) -> str:
        """Which option its time to start comes from: a shorter `timeout` is the time to start, too."""
        return "timeout" if self.deadline <= self.queue_deadline else "queue_timeout"

    def with_siblings(self, siblings: Collection[Sibling]) -> list[EngineRequest]:
        """All sequences of its request, this one first. They share its prompt, which it alone scores."""
        params = self.params
        if siblings and params.prompt_logprobs is not None:
            params = replace(params, prompt_logprobs=None, prompt_logprobs_start=0)
        shared = replace(self, params=params, parent=self.id, num_readings=0)
        return [self, *(replace(shared, id=one.id, seed=one.seed, output=one.output) for one in siblings)]


class Sibling(msgspec.Struct, frozen=True, array_like=True):
    """In what another sequence of a request differs from its first; see EngineRequest."""

    id: str
    seed: int
    output: tuple[int, ...] = ()


class Status(Enum):
    """Where a sequence is. WAITING -> RUNNING -> FINISHED, and back to WAITING by preemption."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Constraint(Protocol):
    """What one sequence may say next, which follows from what it said."""

    def accept(self, token: int) -> bool:
        """It said this; returns whether anything may follow. Raises JaxserveError for what it might not say."""
        ...

    def forced(self) -> ListOf[int]:
        """Tokens that must come next, one after another; empty where there is a choice."""
        ...

    def allows(self, tokens: ListOf[int]) -> int:
        """How many of these it might say, one after another, as far as is known without making masks."""
        ...

    def checkpoint(self) -> Callable[[], None]:
        """What takes it back to here from whatever it accepts meanwhile. Called once, if at all."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's state. The one rule: `num_computed` chases `num_tokens`.

    Attributes:
        num_prompt: tokens of the prompt that are computed.
        limit: prompt and output tokens at which it ends.
        stop_token_ids: tokens that end it.
        service_class: the class that it is scheduled in: its request's, or batch while it is demoted.
        batch: whether that is the batch class.
        reads: a number for every token of the prompt that is read, and for those before it; empty if none is.
        tokens: prompt and output tokens known on the host.
        num_computed: tokens whose keys and values are in the cache once every submitted step has run.
        num_pending: output tokens that steps in flight choose if all their drafts are right, not yet known on the host.
        num_drafts: of these, how many are only chosen if a draft is right.
        drafts: tokens that its next row guesses after the known ones.
        guessed: how many a draft model has guessed behind its last token, on the device.
        unguided: whether the draft model does not know all of its tokens.
        constraint: what it may say; None if anything.
        complete: whether nothing may follow its tokens.
        forced: tokens that must follow those in flight, and are computed with them.
        num_charged: tokens that its tenant was charged for; what a preemption lost is computed again for free.
        slot: row of the executor's per-sequence state while running.
        adapter_slot: the executor's slot with its adapter while running.
        pages: its pages while running.
        capacity: tokens that its pages hold.
        commit_at: computed tokens at which its next page is full.
        swap_slots: those that its pages are in, while it waits in the swap space.
        options: int32[W], its sampling options as the executor gets them.
        prefix_hashes: hashes of its leading full pages, computed once for all look-ups.
        num_cached: prompt tokens found in the prefix cache when it first ran.
        num_shared: tokens of its prompt that others had computed, or would before it, when it came.
        num_read: leading tokens of the prompt that were read, or need not be.
        state_loaded: whether its slot's sampling state was loaded since it got the slot.
        siblings: sequences of the same request that are held until this one's prompt is computed.
        parent: the sequence whose prompt pages it may share while that runs.
        order: number of its admission, the same after preemptions; -1 before the first.
        num_preemptions: times it was preempted.
        admitted, queue_time: clock time at which it first left the queue, and seconds it had waited.
        first_token: clock time of its first token, if that was chosen here.
        queued_work: token-work it adds to the queue it waits in.
        queued_wait: seconds that it was expected to wait when it came, uncorrected.
        late: whether it waits behind those that can still be in time for their first token.
    """

    request: EngineRequest
    task: Task
    num_prompt: int
    limit: int
    stop_token_ids: frozenset[int]
    service_class: ServiceClass
    batch: bool
    reads: tuple[int, ...]
    tokens: list[int]
    status: Status = Status.WAITING
    num_computed: int = 0
    num_pending: int = 0
    num_drafts: int = 0
    drafts: tuple[int, ...] = ()
    guessed: int = 0
    unguided: bool = False
    constraint: Constraint | None = None
    complete: bool = False
    forced: tuple[int, ...] = ()
    num_charged: int = 0
    slot: int = NO_SLOT
    adapter_slot: int = NO_SLOT
    pages: SequencePages = field(default_factory=lambda: SequencePages(b""))
    capacity: int = 0
    commit_at: int = 0
    swap_slots: list[int] = field(default_factory=list)
    options: Ints | None = None
    prefix_hashes: list[bytes] = field(default_factory=list)
    num_cached: int = 0
    num_shared: int = 0
    num_read: int = 0
    state_loaded: bool = False
    siblings: list[Sequence] = field(default_factory=list)
    parent: Sequence | None = None
    order: int = -1
    num_preemptions: int = 0
    admitted: float | None = None
    queue_time: float = 0.0
    first_token: float | None = None
    queued_work: float = 0.0
    queued_wait: float = 0.0
    late: bool = False

    @classmethod
    def from_request(cls, request: EngineRequest, max_model_len: int, task: Task = GENERATE) -> Sequence:
        stops = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos:
            stops |= request.eos_token_ids
        first, reads = task.reads(request.prompt, request.params)
        num_prompt = len(request.prompt) if task.generates else len(reads)
        limit = min(num_prompt + request.max_tokens, max_model_len) if task.generates else num_prompt
        if request.output and num_prompt + len(request.output) >= limit:
            most = limit - num_prompt
            raise InvalidRequestError(
                f"output has {len(request.output)} tokens, but it ends with its {most} tokens at most", param="output"
            )
        return cls(
            request,
            task,
            num_prompt,
            limit,
            stops,
            service_class=request.service_class,
            batch=request.service_class is ServiceClass.BATCH,
            reads=tuple(reads),
            tokens=[*request.prompt[:num_prompt], *request.output],
            num_read=len(reads) if request.output else first + request.num_readings,
        )

    def set_class(self, service_class: ServiceClass) -> None:
        """Change the class that it is scheduled in. Who keeps sequences by class must take it out before and back in after."""
        self.service_class = service_class
        self.batch = service_class is ServiceClass.BATCH

    @property
    def row_source(self) -> RowSource:
        """What its `options` are made of."""
        return RowSource(self.request.params, self.request.seed, self.stop_token_ids, masked=self.constraint is not None)

    @property
    def is_read(self) -> bool:
        return self.num_read < len(self.reads)

    @property
    def num_tokens(self) -> int:
        """Tokens to compute, those that steps in flight may choose and those forced behind them included."""
        return len(self.tokens) + self.num_pending + len(self.forced)

    @property
    def most_drafts(self) -> int:
        """Drafts that its next row may have at most: the last token that it may choose is never one.

        Below `min_tokens` a plan says of a row, not of a token, what it may not choose: so all tokens that it may choose are
        below, and those of the next plan, which is made before it is known which drafts are right.
        """
        params = self.request.params
        most = self.limit - self.num_tokens - 1
        if params.max_draft_tokens >= 0:
            most = min(most, params.max_draft_tokens)
        if self.num_output < params.min_tokens:
            most = min(most, params.min_tokens - 2 - (self.num_tokens - self.num_prompt))
        return most

    @property
    def chooses_forced(self) -> bool:
        """Whether forced tokens are chosen as well: something else forbids or counts them, or tells how likely they were."""
        params = self.request.params
        return params.logprobs is not None or params.allowed_token_ids is not None or params.penalized

    @property
    def takes_forced(self) -> bool:
        """Whether tokens that are forced behind the one in flight need not be chosen."""
        return self.num_pending == 1 and not self.forced and not self.chooses_forced

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def precedence(self) -> tuple[int, int]:
        """Smaller runs first and may preempt larger: by class, then in order of admission.

        A sequence that was preempted again and again rises a class, or the others would never let it finish.
        """
        return max(0, RANKS[self.service_class] - self.num_preemptions // PREEMPTIONS_A_CLASS), self.order


class PackedLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """LogprobRows as bytes, row after row: the chosen token's log-probability and rank, ids and log-probabilities of the top.

    Attributes:
        columns: alternatives a row.
        data: float32, int32, int32[columns] and float32[columns] a row, of this machine's byte order.
    """

    columns: int
    data: bytes

    @classmethod
    def of(cls, rows: LogprobRows) -> PackedLogprobs:
        parts = (_words(rows.chosen)[:, None], rows.rank[:, None], rows.top_ids, _words(rows.top))
        return cls(rows.top_ids.shape[1], np.concatenate(parts, axis=1, dtype=np.int32).tobytes())

    @property
    def rows(self) -> LogprobRows:
        words = np.frombuffer(self.data, np.int32).reshape(-1, 2 + 2 * self.columns)
        floats, top = words.view(np.float32), 2 + self.columns
        return LogprobRows(floats[:, 0], words[:, 1], words[:, 2:top], floats[:, top:])

    @property
    def num_rows(self) -> int:
        return len(self.data) // (8 + 8 * self.columns)

    def row(self, index: int) -> PackedLogprobs:
        size = 8 + 8 * self.columns
        return PackedLogprobs(self.columns, self.data[index * size : (index + 1) * size])

    def first(self, count: int) -> tuple[float, int, list[int], list[float]]:
        """The first row's numbers, of no more than `count` alternatives."""
        view, top = memoryview(self.data), 2 + self.columns  # numpy takes longer for so few
        words, floats, count = view.cast("i"), view.cast("f"), min(count, self.columns)
        ids, values = words[2 : 2 + count].tolist(), floats[top : top + count].tolist()
        return floats[0], words[1], ids, values  # type: ignore[return-value]  # floats are a view of floats


class PackedVectors(msgspec.Struct, frozen=True, array_like=True):
    """float32[N,width] as bytes, of this machine's byte order.

    Attributes:
        num_tokens: that they were read of: N, but where they are sums.
    """

    width: int
    data: bytes
    num_tokens: int

    @classmethod
    def of(cls, vectors: Floats, num_tokens: int) -> PackedVectors:
        return cls(vectors.shape[1], np.ascontiguousarray(vectors, np.float32).tobytes(), num_tokens)

    @property
    def rows(self) -> Floats:
        return np.frombuffer(self.data, np.float32).reshape(-1, self.width)


def _words(values: Floats) -> Ints:
    return np.ascontiguousarray(values, np.float32).view(np.int32)


class Update(msgspec.Struct, frozen=True, array_like=True):
    """What one step did for one sequence: made by the scheduler, and sent to the sequence's front end as it is.

    Attributes:
        token: its new token, or None if it was only read (and ended by that, if nothing was to be generated) or failed.
        logprobs: the token's log-probabilities, one row, if it wanted them.
        prompt_logprobs: log-probabilities of some more of its prompt tokens, in order.
        vectors: what its task read of some more of its prompt tokens instead, in order.
        finish_reason: set when it finished.
        error: set when it failed instead: a deadline passed, or something went wrong with this sequence alone.
        matched: the stop token that ended it (None for end-of-sequence).
        num_cached, queue_time: of its start; given with every token.
        resumed: times that another engine went on with it.
        weights: version of the weights that the token is of; None for those that the engine began with unnamed.
    """

    id: str
    token: int | None = None
    logprobs: PackedLogprobs | None = None
    prompt_logprobs: PackedLogprobs | None = None
    vectors: PackedVectors | None = None
    finish_reason: FinishReason | None = None
    error: JaxserveError | None = None
    matched: int | None = None
    num_cached: int = 0
    queue_time: float = 0.0
    resumed: int = 0
    weights: int | str | None = None
