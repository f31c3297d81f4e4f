"""What front ends and the batch worker have in common: a link to the engine, a socket to the supervisor, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import Awaitable, Callable

from jaxserve.children import Parent
from jaxserve.config.fields import ServerConfig
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.intake import Intake
from jaxserve.engine.link import EngineDescription
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.remote.messages import error_of, wire_error
from jaxserve.engine.streams import StreamLimits
from jaxserve.errors import JaxserveError
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.requests import Objective, RequestRecorder
from jaxserve.metrics.servers import ServerRecorder
from jaxserve.tokenizer.pool import open_texts
from server.processes.control import Control
from server.processes.specs import ENGINE, FAILED, LinkedSpec, decode_error, encode_error

_LOG = logging.getLogger(__name__)

_EXIT_FAILED = 2
_EXIT_ORPHANED = 3

Serve = Callable[[RemoteLink, Control], Awaitable[None]]


def allow_open_files() -> None:
    """Take as many open files, which connections are, as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # where the limit of the limits is none
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def run_linked(spec: LinkedSpec, parent: Parent, serve: Serve) -> int:
    """Serve until `serve` returns or the supervisor is gone. Returns the exit code; the supervisor is told of a JaxserveError."""
    link = RemoteLink(spec.engine)
    reader, writer = await asyncio.open_connection(sock=parent.socket)
    control = Control(reader, writer, {ENGINE: lambda payload: link.explain(error_of(decode_error(payload)))})
    serving = asyncio.ensure_future(serve(link, control))
    orphaned = asyncio.create_task(control.gone())
    await asyncio.wait((serving, orphaned), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        _LOG.error("the supervisor is gone")
        return _EXIT_ORPHANED
    orphaned.cancel()
    try:
        serving.result()
    except JaxserveError as error:
        await control.call(FAILED, encode_error(wire_error(error)))
        return _EXIT_FAILED
    return 0


async def open_client(
    spec: LinkedSpec,
    description: EngineDescription,
    link: RemoteLink,
    instruments: Instruments,
    *,
    tokenizer_processes: int,
) -> Frontend:
    """The engine as this process sees it, with a tokenizer of its own."""
    config: ServerConfig = spec.server_config()
    fell_back = ServerRecorder(instruments).tokenizer_fell_back
    texts = await open_texts(description.tokenizer, description.chat_template, tokenizer_processes, fell_back)
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
