"""Engines on the machines of a Ray cluster: actors that a Ray Data pipeline hands chunks of lines to. Needs the extra 'ray'.

The pipeline is one read task on this machine, which relays what the job sends, and a pool of actors; the job stays here with its
files, so it is durable and resumed as with an engine in this process. Ray brings an actor back that died, and its chunks are
answered again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pyarrow
import ray
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.exceptions import RayError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jaxserve.errors import ConfigError, EngineDeadError, JaxserveError
from jaxserve.jobs.answers import Answer, Answerer, NoAnswer
from jaxserve.jobs.chunks import Chunks, answer_chunk
from jaxserve.jobs.cluster import CHUNKS, ClusterConfig
from jaxserve.jobs.lines import Line

Engine = Callable[[], AbstractAsyncContextManager[Answerer]]
"""Starts an engine in the process it is called in; pickled on its way there."""

_CHUNK, _OUTCOMES = "chunk", "outcomes"  # columns
_END_SECONDS = 3.0  # for the pipeline to end by itself
_EXIT_SECONDS = 1.0  # for the last word of an engine that died to leave its process
_CONNECT_SECONDS = 5.0


class RayEngines:
    """The Answers of all engines together. Belongs to one event loop."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks

    @classmethod
    @asynccontextmanager
    async def start(cls, engine: Engine, config: ClusterConfig, *, rows: int) -> AsyncIterator[RayEngines]:
        """Join the cluster and ask it for the actors; what is asked before they are there waits. At the end all of it is left.

        Args:
            engine: starts one engine.
            config: how many, and what each takes.
            rows: sequences that one engine has in a step: the lines of a chunk.

        Raises ConfigError if there is no such cluster, or it cannot have so many actors.
        """
        loop = asyncio.get_running_loop()
        pipeline = _Pipeline(config)
        chunks = Chunks(pipeline.send, size=rows, on_the_way=config.engines * CHUNKS)  # Ray Data passes on some 20 a second
        await asyncio.to_thread(pipeline.join)
        try:
            pipeline.run(
                pipeline.plan(engine),
                settle=lambda data: loop.call_soon_threadsafe(chunks.settle, data),
                fail=lambda error: loop.call_soon_threadsafe(chunks.fail, error),
            )
            yield cls(chunks)
        finally:
            chunks.fail(EngineDeadError("the engines were closed"))
            await asyncio.to_thread(pipeline.leave)

    async def answer(self, line: Line) -> Answer | NoAnswer:
        """See Answers. Raises EngineDeadError if the cluster gave up."""
        return await self._chunks.answer(line)


class _Pipeline:
    """Chunks in at one end, outcomes out at the other. All but `send` blocks."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._relay: Queue | None = None

    def send(self, chunk: bytes) -> None:
        self._waiting.put(chunk)

    def join(self) -> None:
        """Join the cluster, or start one of this machine alone. Raises ConfigError."""
        address = self._config.ray_address
        try:
            if address is not None and ":" in address:  # Ray itself would try for minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
            ray.init(
                address=address,
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
            logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what is to be told, the job tells
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            self._relay = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        except (OSError, ValueError, RuntimeError, RayError) as error:
            ray.shutdown()
            raise ConfigError(f"cannot join the Ray cluster: {_gist(error)}", param="ray_address") from error

    def plan(self, engine: Engine) -> Any:
        """The dataset of outcomes, lazy. Raises ConfigError if the cluster is too small for the engines."""
        config, there = self._config, ray.cluster_resources()  # type: ignore[no-untyped-call]
        wanted = {"CPU": config.cpus_per_engine, "GPU": config.gpus_per_engine}
        for name, each in wanted.items():
            if each * config.engines > there.get(name, 0):
                raise ConfigError(
                    f"{config.engines} engines of {each:g} {name}s each: the Ray cluster has {there.get(name, 0):g}",
                    param="engines",
                )
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # hand on every chunk at once, not when 128 MiB have come together
        chunks = ray.data.read_datasource(_Relay(self._relay), override_num_blocks=1, num_cpus=0)
        pool = ActorPoolStrategy(
            size=config.engines,
            max_tasks_in_flight_per_actor=CHUNKS,
            max_concurrent_calls_per_actor=CHUNKS,
            enable_true_multi_threading=True,
        )
        return chunks.map(
            _EngineActor,
            fn_constructor_args=(engine,),
            compute=pool,
            num_cpus=wanted["CPU"],
            num_gpus=wanted["GPU"],
        )

    def run(self, dataset: Any, settle: Callable[[bytes], object], fail: Callable[[JaxserveError], object]) -> None:
        """Run it in threads of its own, and tell what comes out of it."""

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except Exception as error:  # whatever Ray raises: nothing comes any more
                fail(EngineDeadError(f"the Ray cluster gave up: {_gist(error)}"))

        def take_out() -> None:
            for table in dataset.iter_batches(batch_size=None, prefetch_batches=0, batch_format="pyarrow"):
                for outcomes in table[_OUTCOMES].to_pylist():
                    settle(outcomes)

        def put_in() -> None:
            assert self._relay is not None, "joined"
            while (chunk := self._waiting.get()) is not None:
                self._relay.put(chunk)
            self._relay.put(None)

        for work in (take_out, put_in):
            thread = threading.Thread(target=guarded, args=(work,), name=f"jaxserve-ray-{work.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def leave(self) -> None:
        """End what runs there; by force what does not end soon by itself."""
        self._waiting.put(None)
        deadline = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(deadline - time.monotonic())
        ray.shutdown()


class _Relay(Datasource):  # type: ignore[misc]  # of Ray, which may be missing
    """What the job sends, as a stream of rows."""

    def __init__(self, waiting: Queue | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Ray
        self._queue = waiting

    @property
    def supports_distributed_reads(self) -> bool:
        """Read on the job's machine, where the lines are."""
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None) -> list[ReadTask]:
        """One: there is one stream."""
        waiting = self._queue

        def rows() -> Iterator[pyarrow.Table]:
            assert waiting is not None
            while (chunk := waiting.get()) is not None:
                yield pyarrow.table({_CHUNK: pyarrow.array([chunk], pyarrow.binary())})

        return [ReadTask(rows, BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None))]


class _EngineActor:
    """One engine, in a process of its own, and the event loop that it lives in. Called by many threads at once."""

    def __init__(self, engine: Engine) -> None:
        self._name = uuid.uuid4().hex
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="jaxserve-loop", daemon=True).start()
        self._context = engine()  # entered and never left: the process ends with the job
        self._answers = self._run(self._context.__aenter__())

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        outcomes, alive = self._run(answer_chunk(self._answers, row[_CHUNK], self._name))
        if not alive:  # then Ray starts another process
            threading.Timer(_EXIT_SECONDS, os._exit, (1,)).start()
        return {_OUTCOMES: outcomes}

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _gist(error: BaseException) -> str:
    """What went wrong, without the stacks of the processes it went through: an error of Ray's ends with its cause."""
    return str(error).strip().rpartition("\n")[2] or repr(error)
