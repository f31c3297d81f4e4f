"""Records how many tokens visited each expert."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from prometheus_client import Counter

from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.turn import LayerTokens

AT_ONCE = 512
"""Series that a busy engine writes at a time: a large model has ten thousand, and a write takes microseconds."""


class ExpertRecorder:
    """Writes to the series of each layer and expert what was added since it was written last, in turn."""

    def __init__(self, instruments: Instruments, model: str) -> None:
        self._counter = instruments.counter(catalogue.EXPERT_TOKENS)
        self._model = model
        self._series: dict[tuple[int, int], tuple[Counter, int]] = {}  # with the value that it has
        self._next = 0

    def record(self, layers: Sequence[LayerTokens], *, everything: bool) -> None:
        """Take the counts; write AT_ONCE series, or all."""
        places = [(layer, expert, tokens) for layer, counts in layers for expert, tokens in enumerate(counts)]
        first = 0 if everything else self._next
        last = len(places) if everything else first + AT_ONCE
        for layer, expert, tokens in islice(places, first, last):
            self._write(layer, expert, tokens)
        self._next = last if last < len(places) else 0

    def _write(self, layer: int, expert: int, tokens: int) -> None:
        place = (layer, expert)
        if place not in self._series:
            self._series[place] = (self._counter.labels(self._model, str(layer), str(expert)), 0)
        series, written = self._series[place]
        if tokens > written:
            series.inc(tokens - written)
            self._series[place] = (series, tokens)
