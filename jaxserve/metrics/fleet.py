"""What happens in a fleet of engines, counted by each front end."""

from __future__ import annotations

from jaxserve.metrics import catalogue
from jaxserve.metrics.instruments import Instruments


class FleetRecorder:
    """Counts what a front end sees of its replicas.

    Args:
        model: name of the served model.
    """

    def __init__(self, instruments: Instruments, model: str) -> None:
        self._replicas = instruments.gauge(catalogue.FLEET_REPLICAS).labels(model)
        self._resumed = instruments.counter(catalogue.FLEET_RESUMED).labels(model)
        self._rerouted = instruments.counter(catalogue.FLEET_REROUTED).labels(model)
        self._lost = instruments.counter(catalogue.FLEET_LOST).labels(model)
        self._hung = instruments.counter(catalogue.FLEET_HUNG).labels(model)
        self._quarantined = instruments.counter(catalogue.FLEET_QUARANTINED).labels(model)

    @classmethod
    def unread(cls) -> FleetRecorder:
        """One that nobody reads."""
        return cls(Instruments(), "")

    def replicas(self, count: int) -> None:
        """So many take requests."""
        self._replicas.set(count)

    def resumed(self) -> None:
        """A request goes on in another engine."""
        self._resumed.inc()

    def rerouted(self) -> None:
        """A request that a replica refused goes to another one."""
        self._rerouted.inc()

    def lost(self) -> None:
        """A replica that took requests is gone."""
        self._lost.inc()

    def hung(self) -> None:
        """A replica hangs."""
        self._hung.inc()

    def quarantined(self) -> None:
        """A replica is so slow that it gets nothing new."""
        self._quarantined.inc()
