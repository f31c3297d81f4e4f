"""Links to engines that do nothing but remember what they are told, and say what a test has them say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.engine.activity import Activity, Lateness
from jaxserve.engine.calls import EngineCall
from jaxserve.engine.client import ModelInfo
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.intake import IntakeLimits, IntakeRules
from jaxserve.engine.link import EngineDescription, EngineLoad, HeldChange, LinkSink
from jaxserve.engine.loop import Refusal, TurnOutcome
from jaxserve.engine.replicas.fleet import FleetLink, FleetSettings
from jaxserve.engine.replicas.replica import Endpoint
from jaxserve.errors import EngineDeadError, JaxserveError
from jaxserve.routing.least_loaded import LeastLoaded
from jaxserve.routing.router import Router
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.types import FinishReason, ServiceClass

PAGE, PAGES = 4, 100
LIMITS = IntakeLimits(256, 260, frozenset(), 8, seed=0, strict=True)
RULES = IntakeRules(LIMITS, CacheNamespace("m", "f32", "r"), Policies(), ServiceClass.INTERACTIVE_PAID, PAGES, PAGE)
MODEL = ModelInfo("hash", "HashForCausalLM", 256, 260, "float32", 0, 0, fingerprint="5eed")
DESCRIPTION = EngineDescription(MODEL, RULES, "/tokenizer", None, SchedulerConfig(max_waiting=8))


def request(name: str, prompt: int = 9, **more: Any) -> EngineRequest:
    return EngineRequest(name, tuple(range(1, prompt + 1)), SamplingParams(), 20, 7, frozenset(), b"root", 0.0, **more)


class ScriptedLink:
    """An engine: `requests` that it has, by their ids there, and whatever else it was told."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.requests: dict[str, EngineRequest] = {}
        self.added: list[list[EngineRequest]] = []
        self.aborted: list[str] = []
        self.demoted: list[tuple[str, bool]] = []
        self.watchers: list[Callable[[HeldChange], None]] = []
        self.strides: list[int] = []
        self.closed = False
        self.state = EngineLoad(pages_total=PAGES, pages_free=PAGES)
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.stopped: float | None = None  # when it stopped to turn
        self.silent: float | None = None
        self.expected: float | None = 0.0  # seconds that its step should take
        self.death: EngineDeath | None = None
        self._sink: LinkSink | None = None

    @property
    def sink(self) -> LinkSink:
        assert self._sink is not None
        return self._sink

    @property
    def heartbeat(self) -> float:
        return time.monotonic() if self.stopped is None else self.stopped

    @property
    def heard(self) -> float:
        return time.monotonic() if self.silent is None else self.silent

    def lateness(self, now: float) -> Lateness:
        return Activity(self.heartbeat, self.expected).lateness(now, now - self.heard)

    def connect(self, sink: LinkSink) -> None:
        self._sink = sink
        sink.lost(EngineDeadError("the engine has not started"))

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self.added.append(list(requests))
        assert not self.requests.keys() & {one.id for one in requests}, "an id is used twice in an engine"
        self.requests.update((one.id, one) for one in requests)

    def abort(self, ids: Sequence[str]) -> None:
        self.aborted += ids
        for name in ids:
            self.requests.pop(name, None)

    def demote(self, ids: Sequence[str], *, demoted: bool) -> None:
        self.demoted += [(name, demoted) for name in ids]

    async def call(self, call: EngineCall[Any]) -> Any:
        return await self.answer

    def watch(self, every: int, holds: Callable[[HeldChange], None]) -> None:
        self.watchers.append(holds)
        self.strides.append(every)

    def load(self) -> EngineLoad:
        return self.state

    async def close(self) -> None:
        self.closed = True

    # What a test has it do.

    def finds(self, **rules: Any) -> None:
        """The engine is there."""
        self.sink.found(replace(DESCRIPTION, rules=replace(RULES, **rules)))

    def dies(self, error: JaxserveError | None = None) -> None:
        self.requests.clear()
        self.sink.lost(error or EngineDeadError("it died"))

    def says(self, name: str, *tokens: int, ends: bool = False) -> None:
        """It chose tokens for one of its sequences."""
        reasons = [FinishReason.LENGTH if ends and place == len(tokens) - 1 else None for place in range(len(tokens))]
        self.sink.deliver([Update(name, token, finish_reason=why) for token, why in zip(tokens, reasons, strict=True)])
        if ends:
            self.requests.pop(name, None)

    def refuses(self, error: JaxserveError) -> None:
        """It does not take what it was given last."""
        ids = tuple(one.id for one in self.added[-1])
        for name in ids:
            del self.requests[name]
        self.sink.deliver([Refusal(ids, error)])


class Heard:
    """The sink of a fleet."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, Update] = {}
        self.refused: dict[str, JaxserveError] = {}
        self.losses: list[JaxserveError] = []
        self.founds: list[EngineDescription] = []

    def deliver(self, outcomes: Sequence[TurnOutcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Refusal):
                self.refused.update((name, outcome.error) for name in outcome.ids)
                continue
            assert outcome.id not in self.ended, "something is told of a sequence that ended"
            if outcome.token is not None:
                self.tokens.setdefault(outcome.id, []).append(outcome.token)
            if outcome.finish_reason is not None or outcome.error is not None:
                self.ended[outcome.id] = outcome

    def lost(self, error: JaxserveError) -> None:
        self.losses.append(error)

    def found(self, description: EngineDescription) -> None:
        self.founds.append(description)


class Bench:
    """A fleet of scripted engines, named by letters, and its sink."""

    def __init__(self, *names: str, settings: FleetSettings | None = None, router: Router | None = None) -> None:
        self.links: dict[str, ScriptedLink] = {}
        self.heard = Heard()
        self.fleet = FleetLink(router or LeastLoaded(), settings, link=self._link)
        self.fleet.connect(self.heard)
        self.set(*names)
        for name in names:
            self.links[name].finds()

    def set(self, *names: str) -> None:
        self.fleet.set_replicas({name: Endpoint(name) for name in names})

    def _link(self, endpoint: Endpoint) -> ScriptedLink:
        link = self.links[endpoint.address] = ScriptedLink(endpoint)
        return link

    def place(self, name: str) -> ScriptedLink:
        """The engine that has a sequence, by its id there."""
        (found,) = [link for link in self.links.values() if name in link.requests]
        return found

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)
