"""What a simulated fleet used, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.planner.fleet import usd_per_m_tokens
from jaxserve.simulation.fleet import Fleet
from jaxserve.simulation.scaling import Decision
from jaxserve.simulation.settings import ReplicaConfig

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """From the start to the end of the last request.

    Attributes:
        replica_hours, gpu_hours: that replicas had GPUs, starting and draining included.
        mean_replicas: over the time.
        usd: what the GPUs cost.
        usd_per_m_tokens: of a million output tokens that clients got; 0 if they got none.
        decisions: to have more replicas or fewer; the first thousand.
    """

    replica_hours: float
    gpu_hours: float
    mean_replicas: float
    usd: float
    usd_per_m_tokens: float
    decisions: list[Decision]


def usage(config: ReplicaConfig, fleet: Fleet) -> Usage:
    seconds, scaling = fleet.ledger.ended, fleet.scaling
    used = seconds * config.replicas if scaling is None else scaling.replica_seconds(seconds)
    price = fleet.spec.layout.hardware.price_per_hour if config.price is None else config.price
    gpu_hours = used / _HOUR * config.tp
    tokens = fleet.ledger.total().output_tokens
    return Usage(
        replica_hours=used / _HOUR,
        gpu_hours=gpu_hours,
        mean_replicas=used / seconds if seconds else 0.0,
        usd=gpu_hours * price,
        usd_per_m_tokens=usd_per_m_tokens(gpu_hours * price, tokens / _HOUR) if tokens else 0.0,
        decisions=[] if scaling is None else scaling.decisions,
    )
