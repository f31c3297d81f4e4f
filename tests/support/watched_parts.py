"""What a checked engine is made of: its setup, requests as clients make them, a cache and an executor that can be watched."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.cache.sequence_pages import SequencePages
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.config.states import StatePlaces
from jaxserve.config.windows import most_pages
from jaxserve.engine.budgets import Budgets, cache_salt
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.step.plan import Plan, StepResult
from jaxserve.types import RequestOptions
from tests.support.hash_executor import (
    VOCAB,
    HashExecutor,
    HashHandle,
    Windows,
    expected,
    first_allowed,
    next_token,
    score_of,
    seen,
)
from tests.support.scripted_grammars import ScriptedConstraint, params_of

MAX_LEN = 40
EOS = frozenset({3})
POISON = VOCAB  # never chosen by the executor: only prompts hold it


@dataclass(frozen=True, kw_only=True)
class Setup:
    config: SchedulerConfig
    policies: Policies = field(default_factory=Policies)
    num_pages: int
    page_size: int
    prefix_caching: bool = True
    swap_slots: int = 0
    swap_page_seconds: float = 0.0
    step_seconds: float = 0.01
    token_seconds: float = 0.001
    windows: Windows = (None,)
    states: StatePlaces | None = None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A request as a client makes it; without output, only its prompt is scored, from `scores` on."""

    prompt: tuple[int, ...]
    output: int
    scores: int | None = None
    n: int = 1
    ignore_eos: bool = False
    grammar: int | None = None
    options: RequestOptions


class WatchedCache(KVCache):
    """Knows how many pages the latest release freed."""

    freed = 0

    def release(self, sequence: SequencePages) -> None:
        before = self.num_free
        super().release(sequence)
        self.freed = self.num_free - before


class TimedHandle(HashHandle):
    def __init__(self, handle: HashHandle, clock: VirtualClock, seconds: float) -> None:
        super().__init__(handle.executor, handle.value)
        self._clock, self._seconds = clock, seconds

    def result(self) -> StepResult:
        self._clock.advance(self._seconds)
        return super().result()


class TimedExecutor(HashExecutor):
    """Shows every plan to `watch` before it runs, and takes time for it."""

    def __init__(self, setup: Setup, clock: VirtualClock, watch: Callable[[Plan], None]) -> None:
        super().__init__(
            setup.num_pages,
            setup.page_size,
            setup.config.max_num_seqs,
            MAX_LEN,
            swap_slots=setup.swap_slots,
            swap_page_seconds=setup.swap_page_seconds,
            poison=POISON,
            windows=setup.windows,
            states=setup.states,
        )
        self._setup, self._clock, self._watch = setup, clock, watch

    def submit(self, plan: Plan) -> TimedHandle:
        self._watch(plan)
        seconds = self._setup.step_seconds + plan.num_tokens * self._setup.token_seconds
        return TimedHandle(super().submit(plan), self._clock, seconds)


def longest_needs(windows: Windows, page_size: int, max_chunk: int) -> int:
    """Pages that the longest sequence holds at once at most."""
    return sum(most_pages(window, MAX_LEN, page_size, max_chunk) for window in windows)


def cache_root(options: RequestOptions) -> bytes:
    return CacheNamespace("model", "float32", "rope", salt=cache_salt(options)).root()


def requests_of(wish: Wish, name: str, now: float, budgets: Budgets) -> list[EngineRequest]:
    """The sequences of a request, cut to what policies allow one of them; none if that is no token behind a prompt's."""
    grant = budgets.grant(wish.options, now)
    longest = MAX_LEN if grant.max_kv_tokens is None else min(MAX_LEN, grant.max_kv_tokens)
    if longest < 2:
        return []
    prompt = wish.prompt[: longest + 1 if wish.output == 0 else longest - 1]
    scored: dict[str, Any] = {"prompt_logprobs": 0, "prompt_logprobs_start": wish.scores} if wish.scores is not None else {}
    if wish.output == 0:
        scored["max_tokens"] = 0
    form = None if wish.grammar is None else params_of(wish.grammar)
    ids = [f"{name}/{index}" for index in range(wish.n)]
    return [
        EngineRequest(
            id=one,
            prompt=prompt,
            params=SamplingParams(
                temperature=0, ignore_eos=wish.ignore_eos, structured_outputs=form, **(scored if one == ids[0] else {})
            ),
            max_tokens=min(wish.output, max(longest - len(prompt), 0)),
            seed=0,
            eos_token_ids=EOS,
            cache_root=cache_root(wish.options),
            arrival=now,
            tenant=wish.options.tenant,
            service_class=grant.service_class,
            parent=None if one == ids[0] else ids[0],
            queue_deadline=grant.queue_deadline,
            deadline=grant.deadline,
            task="score" if wish.output == 0 else "generate",
        )
        for one in ids
    ]


def scores_of(request: EngineRequest, windows: Windows) -> list[int]:
    """The scores that the request gets."""
    if request.params.prompt_logprobs is None:
        return []
    tokens = list(request.prompt)
    first = max(1, request.params.prompt_logprobs_start)
    return [score_of(seen(tokens[:place], windows), tokens[place]) for place in range(first, len(tokens))]


def is_poisoned(request: EngineRequest, windows: Windows) -> bool:
    """Whether the request's first row has no valid logits, or, of a prompt that is only scored, any of its scores."""
    if request.task != "score":
        return POISON in seen(list(request.prompt), windows)
    first = max(1, request.params.prompt_logprobs_start)
    return any(POISON in seen(list(request.prompt[:place]), windows) for place in range(first, len(request.prompt)))


def oracle(request: EngineRequest, windows: Windows) -> list[int]:
    """The tokens that the request gets if nothing ends it early; none if its logits are not valid."""
    if is_poisoned(request, windows):
        return []
    stops = frozenset() if request.params.ignore_eos else EOS
    if request.params.structured_outputs is not None:
        return _constrained(request, stops, windows)
    return expected(list(request.prompt), request.max_tokens, stops, windows=windows)


def is_complete(request: EngineRequest, output: list[int]) -> bool:
    """Whether nothing may follow so many tokens of its grammar."""
    constraint = constraint_of(request)
    return constraint is not None and not all(constraint.accept(token) for token in output)


def constraint_of(request: EngineRequest) -> ScriptedConstraint | None:
    form = request.params.structured_outputs
    return ScriptedConstraint(int(form.regex or 0)) if isinstance(form, StructuredOutputsParams) else None


def _constrained(request: EngineRequest, stops: frozenset[int], windows: Windows) -> list[int]:
    """Every token is the next one that is allowed, one at a time."""
    constraint, tokens = constraint_of(request), list(request.prompt)
    assert constraint is not None
    for _ in range(request.max_tokens):
        tokens.append(first_allowed(next_token(seen(tokens, windows)), constraint.now_allowed()))
        if tokens[-1] in stops or not constraint.accept(tokens[-1]):
            break
    return tokens[len(request.prompt) :]
