"""Records how many tokens visited each expert."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

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
        self._series: list[Counter] = []
        self._written: list[int] = []
        self._next = 0

    def record(self, layers: Sequence[LayerTokens], *, everything: bool) -> None:
        """Take the counts, of the same layers every time; write AT_ONCE series, or all."""
        tokens = list(chain.from_iterable(counts for _, counts in layers))
        if not self._series:
            places = [(str(layer), str(expert)) for layer, counts in layers for expert in range(len(counts))]
            self._series = [self._counter.labels(self._model, *place) for place in places]
            self._written = [0] * len(places)
        first = 0 if everything else self._next
        last = len(tokens) if everything else min(first + AT_ONCE, len(tokens))
        for place in range(first, last):
            more = tokens[place] - self._written[place]
            if more:
                self._series[place].inc(more)
                self._written[place] = tokens[place]
        self._next = last % max(len(tokens), 1)
