"""A sequence on its way through the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from jaxserve.cache.kv_cache import SequencePages
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import ServiceClass

NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence as the engine takes it in: tokens only, already validated.

    Attributes:
        id: unique among active sequences.
        prompt: token ids, not empty, shorter than the context.
        params: how to sample; `n` and stop strings are not the engine's concern.
        max_tokens: output tokens at most, resolved against the context.
        seed: 64-bit seed of this sequence's samples.
        eos_token_ids: tokens that end it unless `ignore_eos`.
        cache_root: hash of the prefix-cache namespace it may share.
        arrival: clock time of arrival, seconds.
        tenant: whose it is.
        service_class: its precedence.
        parent: the sequence of the same request whose prompt pages it shares, None for the first one.
        queue_deadline: clock time by which it must have started.
        deadline: clock time by which it must have ended.
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


class Status(Enum):
    """Where a sequence is. WAITING -> RUNNING -> FINISHED, and back to WAITING by preemption."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's state. The one rule: `num_computed` chases `num_tokens`.

    Attributes:
        tokens: prompt and output tokens known on the host.
        num_computed: tokens whose keys and values are in the cache once every submitted step has run.
        num_pending: output tokens sampled by steps in flight, not yet known on the host (0 or 1).
        slot: row of the executor's per-sequence state while running.
        pages: its pages while running.
        prefix_hashes: hashes of its leading full pages, computed once for all look-ups.
        num_cached: prompt tokens found in the prefix cache when it first ran.
        num_scored: prompt positions whose successor's log-probability was asked for.
        state_loaded: whether its slot's sampling state was loaded since it got the slot.
        admitted, queue_time: clock time at which it first left the queue, and seconds it had waited.
        stop_token_ids: tokens that end it.
    """

    request: EngineRequest
    tokens: list[int]
    stop_token_ids: frozenset[int]
    status: Status = Status.WAITING
    num_computed: int = 0
    num_pending: int = 0
    slot: int = NO_SLOT
    pages: SequencePages = field(default_factory=lambda: SequencePages(b""))
    prefix_hashes: list[bytes] = field(default_factory=list)
    num_cached: int = 0
    num_scored: int = 0
    state_loaded: bool = False
    admitted: float | None = None
    queue_time: float = 0.0

    @classmethod
    def from_request(cls, request: EngineRequest) -> Sequence:
        """A waiting sequence."""
        stops = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos:
            stops |= request.eos_token_ids
        return cls(request, list(request.prompt), stops)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def wants_scores(self) -> bool:
        """Whether prompt log-probabilities are still to be computed."""
        return self.request.params.prompt_logprobs is not None and self.num_scored < self.num_prompt - 1

    @property
    def num_tokens(self) -> int:
        """Tokens to compute, those sampled by steps in flight included."""
        return len(self.tokens) + self.num_pending

    @property
    def num_output(self) -> int:
        """Output tokens, those in flight included."""
        return self.num_tokens - self.num_prompt
