"""A front-end process: HTTP and gRPC over an engine in another process. It never imports jax."""

from __future__ import annotations

import asyncio
import socket
import sys
from functools import partial

import msgspec
import uvloop

from jaxserve.children import adopt
from jaxserve.heap import freeze_gc
from jaxserve.logs import set_up_logging
from jaxserve.metrics.servers import ServerRecorder
from server.gateway.gateway import Gateway
from server.gateway.ledger import RemoteUsageLedger
from server.observe.observatory import Observatory
from server.processes.control import Control
from server.processes.linked import Linked, allow_open_files, client_of, open_models, run_linked
from server.processes.specs import DrainServer, FrontEndSpec, NowReady
from server.run import Servers, run_servers

SWITCH_SECONDS = 0.001  # that a thread which tokenizes or writes a long answer keeps the interpreter from the event loop


def main() -> int:
    """Run a front end until the supervisor ends it. Returns its exit code."""
    parent, first = adopt()
    spec = msgspec.json.decode(first, type=FrontEndSpec)
    config = spec.server_config()
    set_up_logging(config.log_level, config.log_format)
    allow_open_files()
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_linked(spec, parent, partial(_serve, spec)))


async def _serve(spec: FrontEndSpec, linked: Linked) -> None:
    """Build everything and serve until the drain is over. Raises ConfigError or CheckpointError for what cannot be built."""
    config = spec.server_config()
    control = linked.control
    descriptions = await linked.described()  # first, for a server whose engine cannot be built says nothing else
    ledger = RemoteUsageLedger(control.call)
    instruments = linked.instruments
    gateway = Gateway.open(config, ledger, spec.name, ServerRecorder(instruments).usage_tokens_lost)
    client = client_of(await open_models(spec, descriptions, linked, tokenizer_processes=config.tokenizer_processes))
    observatory = Observatory(client, config, instruments, spec.restarts, trouble=lambda: linked.trouble)
    servers = Servers(
        client,
        config,
        observatory,
        gateway=gateway,
        http_socket=socket.socket(fileno=spec.http_socket),
        share_grpc_port=True,
    )
    freeze_gc()
    asking = asyncio.create_task(_pass_on(servers.drain_asked, control))
    try:
        await run_servers(servers, lambda addresses: control.tell(NowReady()))
    finally:
        asking.cancel()
        await ledger.close()


async def _pass_on(asked: asyncio.Event, control: Control) -> None:
    """What one front end was asked for, all do."""
    await asked.wait()
    control.tell(DrainServer())


if __name__ == "__main__":
    sys.exit(main())
