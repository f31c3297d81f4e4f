"""Reads how many tokens visited each expert, which the devices count, without waiting for steps in flight."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxserve.metrics.turn import LayerTokens
from jaxserve.models.config import DecoderConfig


class ExpertTokens:
    """The counts as of the latest reading.

    Args:
        read: the program that copies the counts out of the state, whose own are given to the next step.
    """

    def __init__(self, config: DecoderConfig, read: Any) -> None:
        experts = config.experts
        self._layers = [] if experts is None else [layer for layer, has in enumerate(experts.layers) if has]
        self._read = read
        self._reading: jax.Array | None = None
        self._seen = np.zeros((len(self._layers), 0 if experts is None else experts.count), np.uint32)
        self._total = self._seen.astype(np.int64)

    def counted(self, visited: jax.Array, *, in_flight: bool) -> tuple[LayerTokens, ...]:
        """Visits since the start: while steps are in flight, as of the call before this one.

        Args:
            visited: uint32[layers that have experts, X], the state's.
            in_flight: whether a step is, which writes it.
        """
        if not self._layers:
            return ()
        reading: jax.Array = self._read(visited)
        reading.copy_to_host_async()
        due, self._reading = (self._reading, reading) if in_flight else (reading, None)
        if due is not None:
            seen = np.asarray(due)
            self._total += seen - self._seen  # modulo 2**32, as the device counts
            self._seen = seen
        return tuple(LayerTokens(layer, tuple(row)) for layer, row in zip(self._layers, self._total.tolist(), strict=True))
