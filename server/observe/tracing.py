"""OpenTelemetry spans of exchanges: one for the whole, and for each request to the engine queue, prefill, decode and stream.

Spans are made when an exchange is over, from the times noted on the way: tokens cost nothing. Names of attributes follow
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ where it has them. The extra `otel` must be installed.
"""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from server.observe.exchange import Exchange, ObservedRequest

TIMEOUT_SECONDS = 2.0  # to send a batch; the last one may hold the exit for so long

Stage = tuple[str, float, float]  # name, begin and end by the monotonic clock


class SpanRecorder:
    """Sends spans to a collector, in the background and in batches; those that it cannot take are dropped.

    Args:
        endpoint: the collector's OTLP/gRPC address, such as http://localhost:4317; https for TLS.
    """

    def __init__(self, endpoint: str) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "jaxserve"}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=TIMEOUT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("jaxserve")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, exchange: Exchange) -> None:
        """Record an exchange that is over, as a child of its client's span if it named one; nothing for those without tokens."""
        if not exchange.generations:
            return
        parent = self._propagator.extract({"traceparent": exchange.traceparent}, Context())
        offset = exchange.began_unix - exchange.began
        root = self._tracer.start_span(
            f"{exchange.method} {exchange.route}" if exchange.surface == "http" else exchange.route,
            context=parent,
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.request.model": exchange.generations[0].model,
                "jaxserve.request_id": exchange.request_id,
                "jaxserve.status": exchange.status,
            },
            start_time=_nanoseconds(exchange.began + offset),
        )
        if exchange.status[:1] == "5" or (exchange.surface == "grpc" and exchange.status != "OK"):
            root.set_status(Status(StatusCode.ERROR, exchange.status))
        context = set_span_in_context(root, Context())
        for one in exchange.generations:
            self._generation(one, exchange, context, offset)
        root.end(_nanoseconds(exchange.ended + offset))

    def close(self) -> None:
        """Send what is left. Blocks for some seconds if the collector does not answer."""
        self._provider.shutdown()

    def _generation(self, one: ObservedRequest, exchange: Exchange, context: Context, offset: float) -> None:
        attributes: dict[str, str | int] = {
            "gen_ai.response.id": one.request_id,
            "gen_ai.usage.input_tokens": one.tally.prompt,
            "gen_ai.usage.output_tokens": one.tally.completion,
            "jaxserve.cached_tokens": one.tally.cached,
            "jaxserve.tenant": one.tenant,
            "gen_ai.response.finish_reasons": ",".join(one.reasons),
        }
        for name, begin, end in _stages(one, exchange.ended):
            span = self._tracer.start_span(name, context=context, attributes=attributes, start_time=_nanoseconds(begin + offset))
            span.end(_nanoseconds(end + offset))


def _stages(one: ObservedRequest, ended: float) -> Iterator[Stage]:
    """The stages that a request got to. It streams from its first token to the last byte of its exchange."""
    if one.first_token is None:
        yield "queue", one.began, ended
        return
    started = min(one.began + one.queue, one.first_token)
    yield "queue", one.began, started
    yield "prefill", started, one.first_token
    last = one.last_token if one.last_token is not None else one.first_token
    yield "decode", one.first_token, last
    yield "stream", one.first_token, max(ended, last)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
