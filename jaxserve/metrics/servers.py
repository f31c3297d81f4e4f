"""Records what servers do besides requests: answers, open streams, fallbacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import Instruments


class ServerRecorder:
    """Records the answers of one front end."""

    def __init__(self, instruments: Instruments) -> None:
        self._http = instruments.counter(catalogue.HTTP_REQUESTS)
        self._grpc = instruments.counter(catalogue.GRPC_REQUESTS)
        self._streams = instruments.gauge(catalogue.ACTIVE_STREAMS)
        self._lost = instruments.counter(catalogue.USAGE_TOKENS_LOST)
        self._fallbacks = instruments.counter(catalogue.TOKENIZER_FALLBACKS)

    def http_answered(self, method: str, route: str, status: str) -> None:
        """An HTTP exchange is over. `route` is the path's template, or there would be a series for each path that is tried."""
        self._http.labels(method, route, status).inc()

    def grpc_answered(self, method: str, status: str) -> None:
        self._grpc.labels(method, status).inc()

    @contextmanager
    def stream(self, surface: str) -> Iterator[None]:
        """A stream that is open: "http" or "grpc"."""
        gauge = self._streams.labels(surface)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def usage_tokens_lost(self, count: int) -> None:
        self._lost.inc(count)

    def tokenizer_fell_back(self) -> None:
        """A tokenizer process failed a call, and this process answered it."""
        self._fallbacks.inc()
