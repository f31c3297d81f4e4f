"""Everything that a front end tells of itself, in one place: metrics, access lines, spans, readiness."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from jaxserve.config.server import ServerConfig
from jaxserve.engine.calls import AskAdapterUse
from jaxserve.engine.client import EngineClient
from jaxserve.errors import ConfigError, EngineDeadError, JaxserveError
from jaxserve.metrics import catalogue
from jaxserve.metrics.catalogue import Metric
from jaxserve.metrics.exposition import Exposition, Reading
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.process import ProcessRecorder
from jaxserve.metrics.servers import ServerRecorder
from jaxserve.metrics.vllm_names import CACHE_CONFIG_INFO, LORA_REQUESTS_INFO
from server.models import adapter_base, clients_of
from server.observe.access import log_access
from server.observe.exchange import Exchange
from server.observe.rendered import SECONDS, RenderedOften

ADAPTERS_TIMEOUT = 1.0  # seconds that an engine has to say which adapters it uses


LATE_SECONDS = 1.5  # without a word of the engine, or beyond the time that its step should take: it is not ready


class ExchangeRecorder(Protocol):
    """Takes exchanges that are over."""

    def record(self, exchange: Exchange) -> None: ...

    def close(self) -> None:
        """Send what is left; may block for seconds."""
        ...


class Observatory:
    """Watches one front end.

    Args:
        instruments: metrics of this process, those of `client`'s requests among them.
        restarts: how often a front end in this one's place was started before.
        trouble: what keeps the server from being ready besides the engine, if anything does.
        metrics_seconds: at least from one rendering of the metrics to the next.

    Raises ConfigError if spans are wanted and OpenTelemetry is not installed.
    """

    def __init__(
        self,
        client: EngineClient,
        config: ServerConfig,
        instruments: Instruments,
        restarts: int = 0,
        *,
        trouble: Callable[[], JaxserveError | None] = lambda: None,
        metrics_seconds: float = SECONDS,
    ) -> None:
        self._client = client
        self._config = config
        self._trouble = trouble
        self._exposition = Exposition(instruments)
        self._process = ProcessRecorder(instruments, "frontend", restarts)
        self.servers = ServerRecorder(instruments)
        self._spans = _spans(config)
        self._metrics = RenderedOften(self._rendered, metrics_seconds)

    @contextmanager
    def watching(self, exchange: Exchange) -> Iterator[Exchange]:
        """Watch an exchange from its first byte to its last; its `status` is known at the end."""
        try:
            yield exchange
        finally:
            exchange.ended = time.monotonic()
            if exchange.surface == "http":
                self.servers.http_answered(exchange.method, exchange.route, exchange.status)
            else:
                self.servers.grpc_answered(exchange.method, exchange.status)
            log_access(exchange)
            if self._spans is not None:
                self._spans.record(exchange)

    async def metrics(self) -> bytes:
        """The Prometheus text, rendered at most once a second; an earlier request waits for the next rendering."""
        return await self._metrics.text()

    async def _rendered(self) -> bytes:
        self._process.measure()
        readings = self._readings() + await self._of_adapters()
        return await asyncio.to_thread(self._exposition.text, readings)

    def check_ready(self) -> None:
        """Raise DrainingError or EngineDeadError unless the engine takes requests, its loop turns and other processes find it.

        Of several models one will do.
        """
        self._check_ready(self._client)

    def _check_ready(self, client: EngineClient) -> None:
        client.check_health()
        trouble = self._trouble()
        if trouble is not None:
            raise trouble.copy()
        late = client.lateness()
        if late.worst > LATE_SECONDS:
            if late.silent > LATE_SECONDS:  # then nothing is known of its step
                what = f"nothing was heard of the engine for {late.silent:.1f} s"
            else:
                what = f"the engine's step takes longer than expected, by {late.overdue:.1f} s"
            raise EngineDeadError(what, retry_after=1.0)
        age = client.heartbeat_age()
        if age > self._config.ready_timeout:
            raise EngineDeadError(
                f"the engine's loop has not turned for {age:.1f} s (ready_timeout is {self._config.ready_timeout:g} s)",
                retry_after=1.0,
            )

    async def close(self) -> None:
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    def _readings(self) -> list[Reading]:
        return [reading for one in clients_of(self._client) for reading in self._readings_of(one)]

    def _readings_of(self, client: EngineClient) -> list[Reading]:
        stats = client.stats()
        model = (client.model.name,)
        used = (stats.pages_total - stats.pages_free) / stats.pages_total if stats.pages_total else 0.0
        values: dict[Metric, float] = {
            catalogue.NUM_REQUESTS_RUNNING: stats.running,
            catalogue.NUM_REQUESTS_WAITING: stats.waiting,
            catalogue.KV_CACHE_USAGE: used,
            catalogue.PREFIX_CACHE_QUERIES: stats.prefix_queried_tokens,
            catalogue.PREFIX_CACHE_HITS: stats.prefix_hit_tokens,
            catalogue.NUM_PREEMPTIONS: stats.preemptions,
            catalogue.RECOMPUTED_TOKENS: stats.lost_tokens,
            catalogue.ENGINE_UP: self._is_up(client),
        }
        if stats.imbalance:
            values[catalogue.FLEET_IMBALANCE] = stats.imbalance
        readings = [Reading(metric, model, float(value)) for metric, value in values.items()]
        if stats.pages_total:
            readings.append(Reading(CACHE_CONFIG_INFO, (*model, str(stats.page_size), str(stats.pages_total)), 1.0))
        return readings

    async def _of_adapters(self) -> list[Reading]:
        """Of the model that takes adapters, if any does and it answers in time."""
        client = adapter_base(self._client)
        if client is None:
            return []
        try:
            use = await asyncio.wait_for(client.call(AskAdapterUse()), ADAPTERS_TIMEOUT)
        except (JaxserveError, TimeoutError):
            return []
        model, names = (client.model.name,), (",".join(use.running), ",".join(use.waiting))
        return [
            Reading(catalogue.ADAPTER_DEVICE_BYTES, model, float(use.device_bytes)),
            Reading(catalogue.ADAPTER_HOST_BYTES, model, float(use.host_bytes)),
            Reading(LORA_REQUESTS_INFO, (str(use.slots), *names), time.time()),
        ]

    def _is_up(self, client: EngineClient) -> bool:
        try:
            self._check_ready(client)
        except JaxserveError:
            return False
        return True


def _spans(config: ServerConfig) -> ExchangeRecorder | None:
    """What sends spans. Its module is imported only if they are wanted: OpenTelemetry is an extra."""
    if config.otlp_endpoint is None:
        return None
    try:
        tracing = importlib.import_module("server.observe.tracing")
    except ImportError as error:
        raise ConfigError(
            f"otlp_endpoint needs OpenTelemetry (pip install 'jaxserve[otel]'): {error}", param="otlp_endpoint"
        ) from error
    recorder: ExchangeRecorder = tracing.SpanRecorder(config.otlp_endpoint)
    return recorder
