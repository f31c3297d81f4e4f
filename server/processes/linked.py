"""What front ends and the batch worker have in common: a link to the engine, a socket to the supervisor, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxserve.children import Parent
from jaxserve.config.fleet import RoutingConfig
from jaxserve.config.server import ServerConfig
from jaxserve.engine.client import EngineClient
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.intake import Intake
from jaxserve.engine.link import EngineDescription
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.replicas.fleet import FleetLink, FleetSettings
from jaxserve.engine.replicas.replica import Endpoint
from jaxserve.engine.replicas.resuming import Coordinator, Orders, ResumingLink
from jaxserve.engine.streams import StreamLimits
from jaxserve.errors import JaxserveError
from jaxserve.metrics.fleet import FleetRecorder
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.requests import Objective, RequestRecorder
from jaxserve.metrics.servers import ServerRecorder
from jaxserve.routing.make import make_router
from jaxserve.routing.pools import Pool, PoolRouter
from jaxserve.tokenizer.pool import open_texts
from jaxserve.types import ServiceClass
from server.models import ManyModels
from server.processes.control import Control
from server.processes.specs import (
    EngineGone,
    EngineLost,
    FleetSpec,
    Home,
    LinkedSpec,
    Notice,
    PoolRule,
    Replicas,
    StartFailed,
    SuspectEnded,
    TrialPassed,
)

_LOG = logging.getLogger(__name__)

_EXIT_FAILED = 2
_EXIT_ORPHANED = 3

READ_SECONDS = 1.0  # that every process has to move its metrics before they are read at the new place


class Linked:
    """What a process has that speaks to the engine.

    Attributes:
        links: to the server's own engine, or to those of a fleet, one for each model.
        trouble: why no other process would find the engine now, although this one may; None if it would.
    """

    def __init__(self, spec: LinkedSpec, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.instruments = Instruments(Path(spec.metrics))
        self._fleet = spec.engine if isinstance(spec.engine, FleetSpec) else None
        self.control = Control(reader, writer, self._take)
        self.links = open_links(spec.engine, self.instruments, SupervisedTrials(self.control))
        self.trouble: JaxserveError | None = None

    def _take(self, notice: Notice) -> None:
        if isinstance(notice, Home):
            self._move(notice)
        elif isinstance(notice, EngineGone):
            for link in self.links:
                if isinstance(link, ResumingLink):
                    link.explain(notice.error)
                if notice.final:
                    link.give_up(notice.error)
        elif isinstance(notice, Orders):
            for link in self.links:
                if isinstance(link, ResumingLink):
                    link.instruct(notice)
        elif self._fleet is not None:
            self._tell_links(self._fleet, notice)

    async def described(self) -> list[EngineDescription]:
        """What the engines say of themselves, once there is one of each model. Raises what keeps them from being built."""
        return [await link.described() for link in self.links]

    def _tell_links(self, fleet: FleetSpec, notice: Replicas) -> None:
        """Tell each model's link of its replicas."""
        for link, pools in zip(self.links, fleet.models.values(), strict=True):
            names = {pool.name for pool in pools}
            own = {one.id: Endpoint(one.address, one.weight, fleet.key) for one in notice.places if one.pool in names}
            if isinstance(link, FleetLink):
                link.set_replicas(own)

    def _move(self, home: Home) -> None:
        self.trouble = home.error
        directory = Path(home.metrics)
        if self.trouble is not None or directory == self.instruments.directory:
            return
        for link in self.links:
            if isinstance(link, ResumingLink) and isinstance(home.engine, str):
                link.move(home.engine)
        try:
            self.instruments.move(directory)
        except OSError as error:
            _LOG.error("the metrics of this process cannot be shared in %s: %s", directory, error)
        asyncio.get_running_loop().call_later(READ_SECONDS, self._read_metrics_in, directory)

    def _read_metrics_in(self, directory: Path) -> None:
        self.instruments.directory = directory


class SupervisedTrials:
    """The Coordinator of a process whose supervisor gives the orders."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def lost(self, in_flight: Sequence[str]) -> None:
        self._control.tell(EngineLost(list(in_flight)))

    async def found(self) -> Orders:
        return await self._control.orders()

    def passed(self, request: str) -> None:
        self._control.tell(TrialPassed(request))

    def ended(self, request: str) -> None:
        self._control.tell(SuspectEnded(request))


def open_links(
    engine: str | FleetSpec, instruments: Instruments, coordinator: Coordinator
) -> tuple[ResumingLink | FleetLink, ...]:
    """A link to the engine at an address, or one for each model to a fleet's, which notices name."""
    if isinstance(engine, str):
        return (ResumingLink(RemoteLink(engine), coordinator),)
    routing = RoutingConfig(**engine.routing)
    return tuple(_open_link(model, rules, routing, instruments) for model, rules in engine.models.items())


def _open_link(model: str, rules: Sequence[PoolRule], routing: RoutingConfig, instruments: Instruments) -> FleetLink:
    pools = [Pool(rule.name, tuple(map(ServiceClass, rule.classes)), rule.min_tokens, rule.max_tokens) for rule in rules]
    router = PoolRouter(pools, partial(make_router, routing.router, routing.load_bound))
    settings = FleetSettings(hang_seconds=routing.hang_seconds, wait_seconds=routing.wait_seconds)
    return FleetLink(router, settings, recorder=FleetRecorder(instruments, model))


Serve = Callable[[Linked], Awaitable[None]]


def allow_open_files() -> None:
    """Take as many open files, which connections are, as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # where the limit of the limits is none
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def run_linked(spec: LinkedSpec, parent: Parent, serve: Serve) -> int:
    """Serve until `serve` returns or the supervisor is gone. Returns the exit code; the supervisor is told of a JaxserveError."""
    linked = Linked(spec, *await asyncio.open_connection(sock=parent.socket))
    serving = asyncio.ensure_future(serve(linked))
    orphaned = asyncio.create_task(linked.control.gone())
    await asyncio.wait((serving, orphaned), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        _LOG.error("the supervisor is gone")
        return _EXIT_ORPHANED
    orphaned.cancel()
    try:
        serving.result()
    except JaxserveError as error:
        await linked.control.call(StartFailed(error))
        return _EXIT_FAILED
    return 0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as this process sees it: what its engines said, and how they are reached."""

    description: EngineDescription
    client: Frontend


async def open_models(
    spec: LinkedSpec, descriptions: Sequence[EngineDescription], linked: Linked, *, tokenizer_processes: int
) -> list[ServedModel]:
    """The models, each with a tokenizer of its own, in the order of the links."""
    return [
        ServedModel(description, await _open_client(spec, description, link, linked, tokenizer_processes=tokenizer_processes))
        for description, link in zip(descriptions, linked.links, strict=True)
    ]


def client_of(models: Sequence[ServedModel]) -> EngineClient:
    """One client for all."""
    return models[0].client if len(models) == 1 else ManyModels([one.client for one in models])


async def _open_client(
    spec: LinkedSpec,
    description: EngineDescription,
    link: ResumingLink | FleetLink,
    linked: Linked,
    *,
    tokenizer_processes: int,
) -> Frontend:
    config: ServerConfig = spec.server_config()
    instruments = linked.instruments
    fell_back = ServerRecorder(instruments).tokenizer_fell_back
    texts = await open_texts(
        description.tokenizer,
        description.chat_template,
        tokenizer_processes,
        fell_back,
        parsers=description.parsers,
        parse_special_tokens=description.parse_special_tokens,
    )
    intake = Intake.by_rules(texts.tools.tokenizer, description.rules, f"{spec.name}.")
    objective = Objective(config.slo_ttft_ms / 1000, config.slo_itl_ms / 1000)
    recorder = RequestRecorder(instruments, description.model.name, objective)
    limits = StreamLimits(
        max_tokens=config.max_unread_tokens,
        max_bytes=config.max_unread_kib * 2**10,
        unread_seconds=config.unread_timeout,
        idle_seconds=config.token_timeout,
        stalled_seconds=config.ready_timeout,
    )
    return Frontend(link, texts, description.model, intake, origin=f"{spec.name}.", recorder=recorder, limits=limits)
