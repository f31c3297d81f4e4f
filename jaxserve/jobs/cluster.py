"""Settings of a job whose engines are on a Ray cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxserve.config.check import check_types, require_at_least
from jaxserve.config.fields import setting
from jaxserve.errors import ConfigError

CHUNKS = 4  # that an engine works on at a time: the slow line at the end of one holds up none of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """How many engines, and what each of them takes."""

    engines: int = setting(0, "engines that answer, each an actor of Ray (extra 'ray'); 0 for one in this process")
    ray_address: str | None = setting(None, "Ray cluster to join, as HOST:PORT or 'auto'; one of this machine alone by default")
    cpus_per_engine: float = setting(1.0, "CPU cores that Ray reserves for an engine")
    gpus_per_engine: float = setting(0.0, "GPUs that Ray gives an engine: tensor_parallel_size of them; 0 for engines on CPUs")

    def __post_init__(self) -> None:
        check_types(self)
        require_at_least("engines", self.engines, 0)
        if not 0.0 < self.cpus_per_engine < math.inf:
            raise ConfigError(f"cpus_per_engine must be above 0 and finite, got {self.cpus_per_engine}", param="cpus_per_engine")
        if not 0.0 <= self.gpus_per_engine < math.inf:
            raise ConfigError(
                f"gpus_per_engine must be at least 0 and finite, got {self.gpus_per_engine}", param="gpus_per_engine"
            )
        if self.ray_address is not None and not self.engines:
            raise ConfigError("ray_address needs engines: how many are to be started there", param="ray_address")

    def sequences(self, rows: int) -> int:
        """Sequences in flight that keep every engine busy, of `rows` sequences in a step each. A chunk has `rows` lines."""
        return rows * (self.engines * CHUNKS + 1)
