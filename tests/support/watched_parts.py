"""What a checked engine is made of: its setup, requests as clients make them, a cache and an executor that can be watched."""

from collections.abc import Callable
from dataclasses import dataclass, field

from jaxserve.cache.kv_cache import KVCache, SequencePages
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.config.windows import most_pages
from jaxserve.engine.budgets import Budgets, cache_salt
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.step.plan import Plan
from jaxserve.types import RequestOptions
from tests.support.hash_executor import VOCAB, HashExecutor, HashHandle, Windows, expected, score_of, seen

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
    swap_places: int = 0
    swap_page_seconds: float = 0.0
    step_seconds: float = 0.01
    token_seconds: float = 0.001
    windows: Windows = (None,)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A request as a client makes it; without output, only its prompt is scored, from `scores` on."""

    prompt: tuple[int, ...]
    output: int
    scores: int | None = None
    n: int = 1
    ignore_eos: bool = False
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

    def result(self):
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
            swap_places=setup.swap_places,
            swap_page_seconds=setup.swap_page_seconds,
            poison=POISON,
            windows=setup.windows,
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
    """The sequences of a request, cut to what policies allow one of them."""
    grant = budgets.grant(wish.options, now)
    longest = min(MAX_LEN, grant.max_kv_tokens or MAX_LEN)
    prompt, target = wish.prompt[: longest - 1], None
    if wish.output == 0:
        *before, target = wish.prompt[: longest + 1]
        prompt = tuple(before)
    scored = {"prompt_logprobs": 0, "prompt_logprobs_start": wish.scores} if wish.scores is not None else {}
    if wish.output == 0:
        scored["max_tokens"] = 0
    ids = [f"{name}/{index}" for index in range(wish.n)]
    return [
        EngineRequest(
            id=one,
            prompt=prompt,
            params=SamplingParams(temperature=0, ignore_eos=wish.ignore_eos, **(scored if one == ids[0] else {})),
            max_tokens=min(wish.output, longest - len(prompt)),
            seed=0,
            eos_token_ids=EOS,
            cache_root=cache_root(wish.options),
            arrival=now,
            tenant=wish.options.tenant,
            service_class=grant.service_class,
            parent=None if one == ids[0] else ids[0],
            queue_deadline=grant.queue_deadline,
            deadline=grant.deadline,
            target=target,
        )
        for one in ids
    ]


def scores_of(request: EngineRequest, windows: Windows) -> list[int]:
    """The scores that the request gets."""
    if request.params.prompt_logprobs is None:
        return []
    tokens = list(request.whole_prompt)
    first = max(1, request.params.prompt_logprobs_start)
    return [score_of(seen(tokens[:place], windows), tokens[place]) for place in range(first, len(tokens))]


def is_poisoned(request: EngineRequest, windows: Windows) -> bool:
    """Whether the request's first row has no valid logits."""
    return POISON in seen(list(request.prompt), windows)


def oracle(request: EngineRequest, windows: Windows) -> list[int]:
    """The tokens that the request gets if nothing ends it early; none if its logits are not valid."""
    if is_poisoned(request, windows):
        return []
    stops = frozenset() if request.params.ignore_eos else EOS
    return expected(list(request.prompt), request.max_tokens, stops, windows=windows)
