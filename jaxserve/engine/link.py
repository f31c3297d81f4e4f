"""EngineLink: how a front end reaches its engine, whichever thread or process runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from jaxserve.chat_parsing.registry import Parsers
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.activity import Lateness
from jaxserve.engine.calls import EngineCall
from jaxserve.engine.client import ModelInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.intake import IntakeRules
from jaxserve.engine.loop import TurnOutcome
from jaxserve.errors import JaxserveError
from jaxserve.scheduler.request import EngineRequest

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What a front end must know of an engine to prepare requests for it.

    Attributes:
        rules: what requests must fit.
        tokenizer: absolute path of its tokenizer: a directory or a file.
        chat_template: absolute path of the file that replaces the checkpoint's own chat template, if one does.
        scheduler: how much runs and waits in it at the same time.
        parsers: how to read the model's responses.
        parse_special_tokens: whether control tokens are recognised in what users, tools and documents bring.
    """

    model: ModelInfo
    rules: IntakeRules
    tokenizer: str
    chat_template: str | None
    scheduler: SchedulerConfig
    parsers: Parsers = field(default_factory=Parsers)
    parse_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of an engine, whoever its requests come from; see EngineStats. `step_seconds` are those of its recent steps."""

    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    preemptions: int = 0
    lost_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    step_seconds: float = 0.0
    page_size: int = 0
    imbalance: float = 0.0


@dataclass(frozen=True, slots=True)
class HeldChange:
    """How what a prefix cache holds changed: all is gone if it was `cleared`; then pages were `removed`, and others `stored`.

    Pages are named as in RoutingRequest.
    """

    cleared: bool = False
    removed: Sequence[bytes] = ()
    stored: Sequence[bytes] = ()


def load_of(core: EngineCore) -> EngineLoad:
    """The load now. Only reads numbers, so any thread may ask."""
    scheduler = core.scheduler
    return EngineLoad(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        pages_total=scheduler.cache.num_usable,
        pages_free=scheduler.cache.num_free,
        preemptions=scheduler.num_preemptions,
        lost_tokens=scheduler.num_lost_tokens,
        prefix_queried_tokens=scheduler.cache.queried_tokens,
        prefix_hit_tokens=scheduler.cache.hit_tokens,
        step_seconds=core.step_seconds,
        page_size=scheduler.cache.page_size,
    )


class LinkSink(Protocol):
    """Who hears of the engine. Every method is called in the event loop."""

    def deliver(self, outcomes: Sequence[TurnOutcome]) -> None:
        """Take what a turn of the engine produced."""
        ...

    def lost(self, error: JaxserveError) -> None:
        """The engine runs nothing of what it was given, and takes nothing until it is `found` again; `error` says why.

        Called again where there is more to say, such as how far the next engine's start is.
        """
        ...

    def found(self, description: EngineDescription) -> None:
        """Another engine is there, with nothing to do."""
        ...


class EngineLink(Protocol):
    """An engine from afar. Methods are called in the event loop and never block; nothing but `call` raises."""

    @property
    def heartbeat(self) -> float:
        """Time, by the machine's monotonic clock, at which the engine's loop last turned, as far as is known here."""
        ...

    def lateness(self, now: float) -> Lateness:
        """How late the engine is, as far as is known here."""
        ...

    @property
    def death(self) -> EngineDeath | None:
        """The latest that an engine told of when it died; None if none did."""
        ...

    def connect(self, sink: LinkSink) -> None:
        """Tell `sink` what comes from the engine, from now on."""
        ...

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Hand over the sequences of one request. What becomes of them, a refusal too, comes to the sink."""
        ...

    def abort(self, ids: Sequence[str]) -> None:
        """End sequences at the engine's next turn; unknown ones are passed over."""
        ...

    def demote(self, ids: Sequence[str], *, demoted: bool) -> None:
        """Let sequences give way to all others, or no longer; unknown ones are passed over."""
        ...

    async def call(self, call: EngineCall[Result]) -> Result:
        """Run one of `jaxserve.engine.calls` between two turns.

        Raises EngineDeadError if the engine is gone, else what the call raised: a JaxserveError, or InternalError.
        """
        ...

    def load(self) -> EngineLoad:
        """The load, as far as is known here."""
        ...

    async def close(self) -> None:
        """End the link, and the engine with it if it has no other user."""
        ...
