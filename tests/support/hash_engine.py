"""Engines over a HashExecutor, in this process or in one of their own: quick to start, and their output can be worked out."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.kv_events import parse_kv_events
from jaxserve.config.policies import Policies
from jaxserve.engine.client import ModelInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.intake import Intake, IntakeLimits, IntakeRules
from jaxserve.engine.link import EngineDescription
from jaxserve.engine.publishing import publish
from jaxserve.engine.remote.builders import BuildProgress, ServedEngine
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.remote.process import EngineProcess
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.engine.replicas.fleet import FleetLink, FleetSettings
from jaxserve.engine.replicas.replica import Endpoint
from jaxserve.engine.streams import StreamLimits
from jaxserve.errors import ConfigError
from jaxserve.record.crash import CrashDumper
from jaxserve.record.recording import RecordHeader
from jaxserve.record.ring import StepRing
from jaxserve.routing.least_loaded import LeastLoaded
from jaxserve.routing.router import Router
from jaxserve.sampling.options import NUM_LOGPROBS, STANDARD
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.plan import LogprobRows, Plan, Reading, StepResult
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.tokenizer.texts import TextTools, ThreadTexts
from jaxserve.types import ServiceClass
from tests.support.hash_executor import HashExecutor, HashHandle

VOCAB, CONTEXT, PAGE, PAGES, ROWS, COLUMNS = 260, 256, 4, 401, 16, 20
BUILDER = "tests.support.hash_engine:hash_engine"


@dataclass(frozen=True)
class Faults:
    """Injected faults: the step that fails, or hangs; seconds that every step takes; a token whose sequences kill the process.

    They do so once they have `deadly_length` tokens, with those of the prompt.
    """

    fails_at: int | None = None
    deadly: int | None = None
    deadly_length: int = 0
    hangs_at: int | None = None
    step_seconds: float = 0.0
    refuses_to_build: str | None = None


class ScoringExecutor(HashExecutor):
    """A HashExecutor with log-probabilities, which say of which token they are, and with faults."""

    def __init__(self, faults: Faults, num_pages: int, rows: int) -> None:
        super().__init__(num_pages, PAGE, rows, CONTEXT, VOCAB)
        self.faults = faults
        self.marked: set[str] = set()

    def submit(self, plan: Plan) -> HashHandle:
        if plan.step == self.faults.fails_at:
            raise RuntimeError("the device is gone")
        self._die(plan)
        if plan.step == self.faults.hangs_at:
            threading.Event().wait()
        time.sleep(self.faults.step_seconds)
        result: StepResult = super().submit(plan).value
        wanted = bool((STANDARD.column(plan.sampling, NUM_LOGPROBS) >= 0).any())
        rows = self._rows(result.tokens.reshape(-1)) if wanted else None
        readings = tuple(Reading(self._rows(np.array(readout.values, np.int32))) for readout in plan.readouts)
        return HashHandle(self, replace(result, logprobs=rows, readings=readings))

    def _die(self, plan: Plan) -> None:
        for row, name in enumerate(plan.ids):
            if self.faults.deadly in plan.tokens[plan.query_start[row] : plan.query_start[row + 1]]:
                self.marked.add(name)
            if name in self.marked and plan.kv_length[row] >= self.faults.deadly_length:
                os.kill(os.getpid(), signal.SIGKILL)

    def _rows(self, tokens: np.ndarray) -> LogprobRows:
        tops = (tokens[:, None] + np.arange(COLUMNS)) % VOCAB
        return LogprobRows(
            chosen=(-tokens / 8).astype(np.float32),
            rank=tokens + 1,
            top_ids=tops.astype(np.int32),
            top=(-tops / 16).astype(np.float32),
        )


def parts(argument: Mapping[str, Any]) -> tuple[EngineCore, EngineDescription]:
    """The engine of {"tokenizer": path, "num_pages", "kv_events_config", "dump_dir", fields of SchedulerConfig and Faults}."""
    given = dict(argument)
    tokenizer, num_pages = given.pop("tokenizer"), given.pop("num_pages", PAGES)
    dump_dir = given.pop("dump_dir", None)
    events, namespace = parse_kv_events(given.pop("kv_events_config", None)), CacheNamespace("m", "float32", "r")
    faults = Faults(**{name: given.pop(name) for name in Faults.__dataclass_fields__ if name in given})
    if faults.refuses_to_build is not None:
        raise ConfigError(faults.refuses_to_build, param="model")
    config = SchedulerConfig(**{"max_num_seqs": ROWS, "max_num_batched_tokens": 64, "itl_target_ms": 0.0, **given})
    cache = KVCache(num_pages, PAGE, prefix_caching=True)
    executor = ScoringExecutor(faults, num_pages, config.max_num_seqs)
    dumper = None if dump_dir is None else CrashDumper(StepRing(16), Path(dump_dir), _header(executor))
    core = EngineCore(Scheduler(config, cache, CONTEXT, RealClock()), executor, overlap=True, dumper=dumper)
    publish(core, events, namespace.root().__eq__)
    limits = IntakeLimits(
        max_model_len=CONTEXT,
        vocab_size=VOCAB,
        eos_token_ids=frozenset(),
        max_sequences=config.max_waiting,
        seed=0,
        strict=True,
        max_logprob_values=config.max_logprob_values,
        max_pooling_bytes=config.max_pooling_bytes,
    )
    rules = IntakeRules(limits, namespace, Policies(), ServiceClass.INTERACTIVE_PAID, cache.num_usable, PAGE)
    model = ModelInfo("hash", "HashForCausalLM", CONTEXT, VOCAB, "float32", 0, 0, fingerprint="5eed")
    return core, EngineDescription(model, rules, tokenizer, None, config)


def _header(executor: HashExecutor) -> RecordHeader:
    return RecordHeader(
        jaxserve="0", jax="0", model="hash", fingerprint="5eed", capabilities=executor.capabilities(), settings={}
    )


def hash_engine(argument: Mapping[str, Any], progress: BuildProgress) -> ServedEngine:
    """The builder of an engine process."""
    given = dict(argument)
    time.sleep(given.pop("build_seconds", 0.0))
    core, description = parts(given)
    progress("hashing", 1, 1)
    return ServedEngine(core, description, "a hash engine")


def tools_of(description: EngineDescription) -> TextTools:
    return TextTools(load_tokenizer(description.tokenizer), None)


def front_end(link: Any, description: EngineDescription, origin: str = "", limits: StreamLimits | None = None) -> Frontend:
    """A front end by the rules of the engine that the link leads to."""
    tools = tools_of(description)
    intake = Intake.by_rules(tools.tokenizer, description.rules, origin)
    return Frontend(link, ThreadTexts(tools), description.model, intake, origin=origin, limits=limits)


@dataclass
class RemoteEngine:
    """An engine process, restarted by hand, and the way to it."""

    spec: EngineSpec
    process: EngineProcess

    async def connect(self, origin: str = "", limits: StreamLimits | None = None) -> Frontend:
        async with asyncio.timeout(20):
            link = RemoteLink(self.spec.address)
            return front_end(link, await link.described(), origin, limits)

    async def restart(self) -> None:
        self.process = await EngineProcess.start(self.spec)
        await self.process.ready(lambda *_: None)


@asynccontextmanager
async def remote_engine(*, max_unread: int = 1000, builder: str = BUILDER, **argument: Any) -> AsyncIterator[RemoteEngine]:
    """An engine process at an address of its own; another builder's argument makes another engine than a hash one."""
    with tempfile.TemporaryDirectory(prefix="jaxserve-test-") as folder:
        address = f"ipc://{Path(folder) / 'engine'}"
        spec = EngineSpec(address=address, argument=argument, builder=builder, max_unread=max_unread, log_level="error")
        engine = RemoteEngine(spec, await EngineProcess.start(spec))
        try:
            async with asyncio.timeout(120):
                await engine.process.ready(lambda *_: None)
            yield engine
        finally:
            await engine.process.kill()


@dataclass
class EngineFleet:
    """Engine processes, and one front end over all of them."""

    engines: list[RemoteEngine]
    link: FleetLink
    front: Frontend

    def set_replicas(self, *places: int, **more: str) -> None:
        """These of the engines, and others by their addresses, are the fleet's."""
        endpoints = {f"pool/{place}": Endpoint(self.engines[place].spec.address) for place in places}
        self.link.set_replicas(endpoints | {name: Endpoint(address) for name, address in more.items()})


@asynccontextmanager
async def engine_fleet(
    count: int, settings: FleetSettings | None = None, *, router: Router | None = None, **argument: Any
) -> AsyncIterator[EngineFleet]:
    async with AsyncExitStack() as opened:
        starting = [opened.enter_async_context(remote_engine(**argument)) for _ in range(count)]
        engines = [await engine for engine in starting]
        fleet = EngineFleet(engines, link := FleetLink(router or LeastLoaded(), settings), cast(Frontend, None))
        fleet.set_replicas(*range(count))
        async with asyncio.timeout(20):
            fleet.front = front_end(link, await link.described())
            while sum(state.ready for state in link.replicas.values()) < count:
                await asyncio.sleep(0.01)
        try:
            yield fleet
        finally:
            await fleet.front.drain(0.0)
