"""A front-end process: HTTP and gRPC over an engine in another process. It never imports jax."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import sys
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from jaxserve.children import Parent, adopt
from jaxserve.config.fields import ServerConfig
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.intake import Intake
from jaxserve.engine.link import EngineDescription
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.remote.messages import error_of, wire_error
from jaxserve.engine.streams import StreamLimits
from jaxserve.errors import JaxserveError
from jaxserve.heap import settle
from jaxserve.logs import set_up_logging
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.requests import Objective, RequestRecorder
from jaxserve.metrics.servers import ServerRecorder
from jaxserve.tokenizer.pool import open_texts
from server.gateway.gateway import Gateway
from server.gateway.ledger import RemoteLedger
from server.observe.observatory import Observatory
from server.processes.control import Control
from server.processes.specs import DRAIN, ENGINE, FAILED, LEDGER, LISTENING, FrontEndSpec, decode_error, encode_error
from server.run import Servers, run_servers

_LOG = logging.getLogger(__name__)
_EXIT_ORPHANED = 3


def main() -> int:
    """Run a front end until the supervisor ends it. Returns its exit code."""
    parent, first = adopt()
    spec = msgspec.json.decode(first, type=FrontEndSpec)
    config = spec.server_config()
    set_up_logging(config.log_level, config.log_format)
    _allow_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(spec, parent))


def _allow_connections() -> None:
    """Take as many open files, which connections are, as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # where the limit of the limits is none
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(spec: FrontEndSpec, parent: Parent) -> int:
    link = RemoteLink(spec.engine)
    reader, writer = await asyncio.open_connection(sock=parent.socket)
    control = Control(reader, writer, {ENGINE: lambda payload: link.explain(error_of(decode_error(payload)))})
    serving = asyncio.create_task(_serve(spec, link, control))
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
        return 2
    return 0


async def _serve(spec: FrontEndSpec, link: RemoteLink, control: Control) -> None:
    """Build everything and serve until the drain is over. Raises ConfigError or CheckpointError for what cannot be built."""
    config = spec.server_config()
    description = await link.described()  # first, for a server whose engine cannot be built says nothing else
    ledger = RemoteLedger(partial(control.call, LEDGER))
    instruments = Instruments()
    gateway = Gateway.open(config, ledger, spec.name, ServerRecorder(instruments).usage_tokens_lost)
    client = await _client(spec, config, description, link, instruments)
    observatory = Observatory(client, config, instruments, Path(spec.metrics), spec.restarts)
    servers = Servers(
        client,
        config,
        observatory,
        gateway=gateway,
        http_socket=socket.socket(fileno=spec.http_socket),
        share_grpc_port=True,
    )
    settle()
    asking = asyncio.create_task(_pass_on(servers.drain_asked, control))
    try:
        await run_servers(servers, lambda addresses: _told(control))
    finally:
        asking.cancel()
        await ledger.close()


async def _client(
    spec: FrontEndSpec, config: ServerConfig, description: EngineDescription, link: RemoteLink, instruments: Instruments
) -> Frontend:
    fell_back = ServerRecorder(instruments).tokenizer_fell_back
    texts = await open_texts(description.tokenizer, description.chat_template, config.tokenizer_processes, fell_back)
    intake = Intake.by_rules(texts.tools.tokenizer, description.rules, f"{spec.name}.")
    objective = Objective(config.slo_ttft_ms / 1000, config.slo_itl_ms / 1000)
    recorder = RequestRecorder(instruments, description.model.name, objective)
    limits = StreamLimits(config.max_unread_tokens, config.max_unread_kib * 2**10, config.unread_timeout, config.token_timeout)
    return Frontend(link, texts, description.model, intake, origin=f"{spec.name}.", recorder=recorder, limits=limits)


def _told(control: Control) -> None:
    """Tell the supervisor that this front end listens."""
    control.tell(LISTENING)


async def _pass_on(asked: asyncio.Event, control: Control) -> None:
    """What one front end was asked for, all do."""
    await asked.wait()
    control.tell(DRAIN)


if __name__ == "__main__":
    sys.exit(main())
