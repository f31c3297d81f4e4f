"""Prompts that share beginnings on four engines of this machine, whose caches hold a part of them each, behind one front end."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from jaxserve.config.fields import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxserve.engine.calls import Flush
from jaxserve.engine.events import Delta, Finished
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.intake import Intake
from jaxserve.engine.remote.process import EngineProcess
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.engine.replicas.fleet import FleetLink, FleetSettings
from jaxserve.engine.replicas.replica import Endpoint
from jaxserve.routing.make import RouterName, make_router
from jaxserve.routing.router import PageListener, ReplicaLoad, Router, RoutingRequest
from jaxserve.sampling.params import SamplingParams
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.tokenizer.texts import TextTools, ThreadTexts

REPLICAS, TENANTS, PREFIX_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 4, 32, 300, 20, 8
PAGE_SIZE, ROWS = 16, 4
HELD = (3, 10)  # system prompts that a replica's cache has room for, beside what runs: all caches together for 12 and 40
ROUTERS: tuple[RouterName, ...] = ("prefix", "least_loaded", "round_robin", "random")
_PATIENT = FleetSettings(hang_seconds=120.0, wait_seconds=120.0)  # a shared machine is slow, and none of them hangs


class CountedRouter:
    """A Router around another one that remembers whom it chose.

    Attributes:
        chosen: the replica of each request.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self.chosen: dict[str, str] = {}

    @property
    def pages(self) -> PageListener | None:
        return self._router.pages

    def join(self, replica: str, weight: float = 1.0) -> None:
        self._router.join(replica, weight)

    def leave(self, replica: str) -> None:
        self._router.leave(replica)

    def observe(self, replica: str, load: ReplicaLoad, now: float) -> None:
        self._router.observe(replica, load, now)

    def choose(self, request: RoutingRequest, now: float, excluded: Collection[str] = ()) -> str | None:
        name = self._router.choose(request, now, excluded)
        if name is not None:
            self.chosen[request.id.partition("/")[0]] = name  # sequences have their request's id and more
        return name

    def started(self, request_id: str, now: float) -> None:
        self._router.started(request_id, now)

    def ended(self, request_id: str, now: float) -> None:
        self._router.ended(request_id, now)


@dataclass(frozen=True, slots=True)
class Answered:
    """A request: tokens of its prompt, those that were cached, seconds to its first token."""

    id: str
    prompt: int
    cached: int
    ttft: float

    @property
    def work(self) -> int:
        """Token-work, as a router counts it."""
        return self.prompt - self.cached + 2 * OUTPUT_TOKENS


def routing(requests: int, at_once: int) -> dict[str, Any]:
    """The same requests by each router, from empty caches; so many are in flight."""
    return asyncio.run(_routing(requests, at_once))


async def _routing(requests: int, at_once: int) -> dict[str, Any]:
    return {
        "replicas": REPLICAS,
        "system_prompts": TENANTS,
        "system_prompt_tokens": PREFIX_TOKENS,
        "requests": requests,
        "at_once": at_once,
        "caches": [await _with_caches(held, requests, at_once) for held in HELD],
    }


async def _with_caches(held: int, requests: int, at_once: int) -> dict[str, Any]:
    """Of engines whose caches hold so many system prompts each."""
    pages = 1 + -(-PREFIX_TOKENS // PAGE_SIZE) * held + ROWS * 2
    rows = []
    async with _engines(pages) as addresses:
        for name in ROUTERS:
            rows.append(await _by(name, addresses, requests, at_once))
            print(rows[-1], flush=True)
    hits = {row["router"]: row["prefix_hit_rate"] for row in rows}
    return {
        "system_prompts_a_cache_holds": held,
        "num_pages": pages,
        "hits_over_random": round(hits["prefix"] / max(hits["random"], 1e-9), 2),
        "routers": rows,
    }


@asynccontextmanager
async def _engines(pages: int) -> AsyncIterator[list[str]]:
    """Addresses of engine processes with so many pages each."""
    config = EngineConfig(
        model=ModelConfig(model="pico", max_model_len=512),
        cache=CacheConfig(page_size=PAGE_SIZE, num_pages=pages),
        scheduler=SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=128),
    )
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        addresses = [f"ipc://{folder / str(number)}" for number in range(REPLICAS)]
        for address in addresses:  # one after another: they compile on the same cores
            process = await EngineProcess.start(EngineSpec(address=address, argument=asdict(config), log_level="warning"))
            opened.push_async_callback(process.kill)
            await process.ready(lambda *_: None)
        yield addresses


async def _by(name: RouterName, addresses: list[str], requests: int, at_once: int) -> dict[str, Any]:
    router = CountedRouter(make_router(name))
    link = FleetLink(router, _PATIENT)
    link.set_replicas({str(number): Endpoint(address) for number, address in enumerate(addresses)})
    description = await link.described()
    tools = TextTools(load_tokenizer(description.tokenizer), None)
    front = Frontend(link, ThreadTexts(tools), description.model, Intake.by_rules(tools.tokenizer, description.rules, ""))
    while not all(state.ready for state in link.replicas.values()):
        await asyncio.sleep(0.01)
    await front.call(Flush())
    free, random = asyncio.Semaphore(at_once), Random(0)
    shares = [1.0 / rank for rank in range(1, TENANTS + 1)]
    tenants = random.choices(range(TENANTS), shares, k=requests)

    async def one(number: int) -> Answered:
        async with free:
            return await _ask(front, f"request-{number}", _prompt(tenants[number], number, description.model.vocab_size))

    answered = await asyncio.gather(*(one(number) for number in range(requests)))
    await front.drain(0.0)
    prompt, cached = sum(one.prompt for one in answered), sum(one.cached for one in answered)
    ttft = sorted(one.ttft for one in answered)
    counts: Counter[str] = Counter(router.chosen[answer.id] for answer in answered)
    work: Counter[str] = Counter()
    for answer in answered:
        work[router.chosen[answer.id]] += answer.work
    return {
        "router": name,
        "prefix_hit_rate": round(cached / prompt, 4),
        "tokens_computed": prompt - cached,
        "ttft_ms": {"p50": round(1e3 * statistics.median(ttft)), "p90": round(1e3 * ttft[int(0.9 * len(ttft))])},
        "most_requests_over_mean": round(max(counts.values()) * REPLICAS / requests, 3),
        "most_work_over_mean": round(max(work.values()) * REPLICAS / work.total(), 3),
    }


async def _ask(front: Frontend, name: str, prompt: list[int]) -> Answered:
    start, first, cached = time.monotonic(), 0.0, 0
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    async for event in front.generate({"prompt_token_ids": prompt}, params, request_id=name):
        if isinstance(event, Delta) and not first:
            first = time.monotonic() - start
        elif isinstance(event, Finished):
            cached = event.usage.cached_tokens
    return Answered(name, len(prompt), cached, first)


def _prompt(tenant: int, number: int, vocabulary: int) -> list[int]:
    """A tenant's system prompt, and some of the request's own."""
    return [*_tokens(f"tenant {tenant}", PREFIX_TOKENS, vocabulary), *_tokens(f"request {number}", OWN_TOKENS, vocabulary)]


def _tokens(name: str, count: int, vocabulary: int) -> list[int]:
    random = Random(name)
    return [random.randrange(vocabulary // 2) for _ in range(count)]
