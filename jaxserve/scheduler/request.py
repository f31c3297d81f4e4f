"""A sequence on its way through the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from jaxserve.cache.kv_cache import SequencePages
from jaxserve.errors import JaxserveError
from jaxserve.sampling.params import SamplingParams
from jaxserve.step.plan import LogprobRows
from jaxserve.types import FinishReason, ServiceClass

NO_SLOT = -1
RANKS = MappingProxyType({service_class: rank for rank, service_class in enumerate(ServiceClass)})
PREEMPTIONS_A_CLASS = 2  # after so many a sequence counts as one class higher


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence as the engine takes it in: tokens only, already validated.

    Attributes:
        id: unique among active sequences.
        prompt: token ids, not empty, shorter than the context.
        params: how to sample; `n` and stop strings are not the engine's concern.
        max_tokens: output tokens at most, resolved against the context; 0 if the prompt is only scored.
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
        target: what follows the prompt, if the prompt is only scored: its log-probability is wanted, and no token.
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
    target: int | None = None

    @property
    def may_be_shed(self) -> bool:
        """Whether an overload is a reason to refuse it."""
        return not (self.own_queue_timeout or self.of_list or self.service_class is ServiceClass.BATCH)

    @property
    def start_limit(self) -> str:
        """Which option its time to start comes from: a shorter `timeout` is the time to start, too."""
        return "timeout" if self.deadline <= self.queue_deadline else "queue_timeout"

    @property
    def whole_prompt(self) -> tuple[int, ...]:
        """The prompt as its client gave it."""
        return self.prompt if self.target is None else (*self.prompt, self.target)


class Status(Enum):
    """Where a sequence is. WAITING -> RUNNING -> FINISHED, and back to WAITING by preemption."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's state. The one rule: `num_computed` chases `num_tokens`.

    Attributes:
        num_prompt: tokens of the prompt.
        limit: prompt and output tokens at which it ends.
        stop_token_ids: tokens that end it.
        service_class: the class that it is scheduled in: its request's, or batch while it is demoted.
        batch: whether that is the batch class.
        targets: tokens from the first on of which log-probabilities are wanted, that of the first excepted; empty if none are.
        tokens: prompt and output tokens known on the host.
        num_computed: tokens whose keys and values are in the cache once every submitted step has run.
        num_pending: output tokens sampled by steps in flight, not yet known on the host (0 or 1).
        num_charged: tokens that its tenant was charged for; what a preemption lost is computed again for free.
        slot: row of the executor's per-sequence state while running.
        pages: its pages while running.
        capacity: tokens that its pages hold.
        commit_at: computed tokens at which its next page is full.
        places: where its pages are in the swap space, while it waits there.
        prefix_hashes: hashes of its leading full pages, computed once for all look-ups.
        num_cached: prompt tokens found in the prefix cache when it first ran.
        num_scored: prompt positions whose successor's log-probability was asked for, or is not wanted.
        state_loaded: whether its slot's sampling state was loaded since it got the slot.
        siblings: sequences of the same request that are held until this one's prompt is computed.
        parent: the sequence whose prompt pages it may share while that runs.
        order: number of its admission, the same after preemptions; -1 before the first.
        num_preemptions: times it was preempted.
        admitted, queue_time: clock time at which it first left the queue, and seconds it had waited.
        queued_work: token-work it adds to the queue it waits in.
        queued_wait: seconds that it was expected to wait when it came, uncorrected.
        late: whether it waits behind those that can still be in time for their first token.
    """

    request: EngineRequest
    num_prompt: int
    limit: int
    stop_token_ids: frozenset[int]
    service_class: ServiceClass
    batch: bool
    targets: tuple[int, ...]
    tokens: list[int]
    status: Status = Status.WAITING
    num_computed: int = 0
    num_pending: int = 0
    num_charged: int = 0
    slot: int = NO_SLOT
    pages: SequencePages = field(default_factory=lambda: SequencePages(b""))
    capacity: int = 0
    commit_at: int = 0
    places: list[int] = field(default_factory=list)
    prefix_hashes: list[bytes] = field(default_factory=list)
    num_cached: int = 0
    num_scored: int = 0
    state_loaded: bool = False
    siblings: list[Sequence] = field(default_factory=list)
    parent: Sequence | None = None
    order: int = -1
    num_preemptions: int = 0
    admitted: float | None = None
    queue_time: float = 0.0
    queued_work: float = 0.0
    queued_wait: float = 0.0
    late: bool = False

    @classmethod
    def from_request(cls, request: EngineRequest, max_model_len: int) -> Sequence:
        """A waiting sequence."""
        stops = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos:
            stops |= request.eos_token_ids
        num_prompt = len(request.prompt)
        limit = min(num_prompt + request.max_tokens, max_model_len)
        if request.target is not None:
            limit = num_prompt + 1  # its last row samples as every row does; nobody gets that token
        return cls(
            request,
            num_prompt,
            limit,
            stops,
            service_class=request.service_class,
            batch=request.service_class is ServiceClass.BATCH,
            targets=() if request.params.prompt_logprobs is None else request.whole_prompt,
            tokens=list(request.prompt),
            num_scored=max(0, request.params.prompt_logprobs_start - 1),
        )

    def set_class(self, service_class: ServiceClass) -> None:
        """Change the class that it is scheduled in. Who keeps sequences by class must take it out before and back in after."""
        self.service_class = service_class
        self.batch = service_class is ServiceClass.BATCH

    @property
    def wants_scores(self) -> bool:
        """Whether prompt log-probabilities are still to be computed."""
        return self.num_scored < len(self.targets) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens to compute, those sampled by steps in flight included."""
        return len(self.tokens) + self.num_pending

    @property
    def num_output(self) -> int:
        """Output tokens known on the host."""
        return len(self.tokens) - self.num_prompt

    @property
    def precedence(self) -> tuple[int, int]:
        """Smaller runs first and may preempt larger: by class, then in order of admission.

        A sequence that was preempted again and again rises a class, or the others would never let it finish.
        """
        return max(0, RANKS[self.service_class] - self.num_preemptions // PREEMPTIONS_A_CLASS), self.order


@dataclass(slots=True)
class Update:
    """What one step did for one sequence.

    Attributes:
        id: the sequence.
        token: its new token, or None if it was only scored (and ended by that, if nothing was to be generated) or failed.
        logprobs, index: row `index` of `logprobs` holds the token's log-probabilities, if it wanted them.
        score: log-probabilities of some more of its prompt tokens, in order.
        reason: set when it finished.
        error: set when it failed instead: a deadline passed, or something went wrong with this sequence alone.
        matched: the stop token that ended it (None for end-of-sequence).
        num_cached, queue_time: of its start; given with every token.
    """

    id: str
    token: int | None = None
    logprobs: LogprobRows | None = None
    index: int = 0
    score: LogprobRows | None = None
    reason: FinishReason | None = None
    error: JaxserveError | None = None
    matched: int | None = None
    num_cached: int = 0
    queue_time: float = 0.0
