"""The batch worker's process: runs the batches of a state directory over an engine in another process. It never imports jax."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from collections.abc import Sequence
from functools import partial

import msgspec
import uvloop

from jaxserve.children import adopt
from jaxserve.clock import RealClock
from jaxserve.config.server import ServerConfig
from jaxserve.heap import freeze_gc
from jaxserve.jobs.answers import Answer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.lines import Line
from jaxserve.logs import set_up_logging
from jaxserve.metrics.batches import BatchRecorder
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.process import ProcessRecorder
from jaxserve.metrics.servers import ServerRecorder
from server.batches.answers import EngineAnswerer, LineAnswerer
from server.batches.by_model import ByModel
from server.batches.records import Batch
from server.batches.room import Room
from server.batches.running import BatchTools
from server.batches.store import Store
from server.batches.turns import Turns
from server.batches.worker import Worker
from server.context import RequestContext
from server.gateway.call import Call
from server.gateway.gateway import Gateway
from server.gateway.ledger import RemoteUsageLedger
from server.http.bodies import BodyAnswerer
from server.processes.linked import Linked, ServedModel, client_of, open_models, run_linked
from server.processes.specs import LinkedSpec, NowReady

_MIB = 2**20
_MEASURE_SECONDS = 5.0
_WINDOW, _WINDOW_MIB = 1024, 8  # of each batch, of which many run side by side


def main() -> int:
    """Run batches until the supervisor ends it. Returns its exit code."""
    parent, first = adopt()
    spec = msgspec.json.decode(first, type=LinkedSpec)
    config = spec.server_config()
    set_up_logging(config.log_level, config.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_linked(spec, parent, partial(_serve, spec)))


async def _serve(spec: LinkedSpec, linked: Linked) -> None:
    """Build everything and run batches until the drain. Raises ConfigError or CheckpointError for what cannot be built."""
    config = spec.server_config()
    control, instruments = linked.control, linked.instruments
    descriptions = await linked.described()  # first, for a server whose engine cannot be built says nothing else
    store = Store.of(config)
    assert store is not None, "the supervisor starts no worker without a state directory"
    ledger = RemoteUsageLedger(control.call)
    gateway = Gateway.open(config, ledger, spec.name, ServerRecorder(instruments).usage_tokens_lost)
    models = await open_models(spec, descriptions, linked, tokenizer_processes=0)
    client = client_of(models)
    measuring = asyncio.create_task(_measure(ProcessRecorder(instruments, "batches", spec.restarts)))
    freeze_gc()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    control.tell(NowReady())
    try:
        await Worker(_tools(config, store, models, gateway, instruments)).run(stopped)
    finally:
        measuring.cancel()
        await client.drain(0.0)
        gateway.close()
        await ledger.close()
        store.close()


def _tools(
    config: ServerConfig,
    store: Store,
    models: Sequence[ServedModel],
    gateway: Gateway,
    instruments: Instruments,
) -> BatchTools:
    client = client_of(models)
    lanes = [_Lane(one) for one in models]

    async def ask(line: Line, tenant: str, call: Call) -> Answer:
        return await BodyAnswerer(client, tenant, gateway.lenience, RequestContext(call)).answer(line)

    def answers(batch: Batch) -> LineAnswerer:
        return ByModel(
            {
                lane.model.client.model.names: EngineAnswerer(batch, ask, lane.turns, gateway, lane.model.client.check_health)
                for lane in lanes
            }
        )

    return BatchTools(
        store=store,
        answers=answers,
        fingerprint=" ".join(one.description.rules.namespace.model for one in models),
        max_lines=config.max_batch_lines,
        job=JobConfig(
            concurrency=sum(lane.room.most.sequences for lane in lanes),
            window=_WINDOW,
            window_mib=_WINDOW_MIB,
            max_line_mib=math.ceil(config.max_body_bytes / _MIB),
            suspected_after=2,  # the supervisor finds lines that end the engine, unless it ends, too
        ),
        recorder=BatchRecorder(instruments),
    )


class _Lane:
    """The turns of lines that one model answers: its engines are kept busy whatever others do."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.room = Room(model.description.scheduler, self._busy, RealClock())
        self.turns = Turns(self.room.bound, self._weight)

    def _busy(self) -> int:
        stats = self.model.client.stats()
        return stats.running + stats.waiting

    def _weight(self, tenant: str) -> float:
        return self.model.description.rules.policies.of_tenant(tenant).weight


async def _measure(recorder: ProcessRecorder) -> None:
    while True:
        recorder.measure()
        await asyncio.sleep(_MEASURE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
