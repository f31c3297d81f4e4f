"""What a fleet is: pools of replicas, each of a model, behind one ingress; `fleet_file` reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxserve.config.check import check_types
from jaxserve.config.fields import EngineConfig, setting
from jaxserve.config.pool_scaling import PoolScaling
from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError
from jaxserve.types import ServiceClass

RouterName = Literal["prefix", "least_loaded", "round_robin", "random"]
_MOST_REPLICAS = 10_000
_MOST_INGRESSES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """How requests find replicas, and what is done where replicas fail."""

    router: RouterName = setting(
        "prefix", "'prefix': where its prompt's beginning is cached, within bounds of load; the others look at no prompt"
    )
    load_bound: float = setting(1.25, "times the mean load of replicas beyond which 'prefix' gives a replica nothing more")
    hang_seconds: float = setting(
        1.5, "seconds without a word of a replica, or beyond the expected time of its step, after which its streams go elsewhere"
    )
    wait_seconds: float = setting(60.0, "seconds for which requests of a lost replica wait for another where there is none")

    def __post_init__(self) -> None:
        check_types(self)
        if not 1.0 < self.load_bound < math.inf:
            raise ConfigError(f"load_bound must be above 1, got {self.load_bound}", param="load_bound")
        if not 0.5 <= self.hang_seconds < math.inf:
            raise ConfigError(f"hang_seconds must be at least 0.5, got {self.hang_seconds}", param="hang_seconds")
        if not 0.0 <= self.wait_seconds < math.inf:
            raise ConfigError(f"wait_seconds must be at least 0, got {self.wait_seconds}", param="wait_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressConfig:
    """The processes that clients connect to."""

    replicas: int = setting(1, "how many there are; more than one hold the limits of tenants together")
    without_ledger: Literal["refuse", "admit"] = setting(
        "refuse", "what becomes of requests of tenants with limits where those cannot be looked at"
    )

    def __post_init__(self) -> None:
        check_types(self)
        if not 1 <= self.replicas <= _MOST_INGRESSES:
            raise ConfigError(f"ingress: replicas must be from 1 to {_MOST_INGRESSES}, got {self.replicas}", param="ingress")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Replicas that are alike.

    Attributes:
        name: of letters, digits, "-" and "_".
        engine: what each builds, its model first of all.
        replicas: how many there are; where they scale, at most.
        scaling: between what numbers, and how; None if there are always as many.
        cpus, gpus: that each gets of the cluster's.
        weight: speed of one, as a multiple of others'.
        classes: of requests that go there first; all by default.
        min_tokens, max_tokens: of prompt and output together, of requests that go there first.
    """

    name: str
    engine: EngineConfig
    replicas: int = 1
    scaling: PoolScaling | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    weight: float = 1.0
    classes: tuple[ServiceClass, ...] = tuple(ServiceClass)
    min_tokens: int = 0
    max_tokens: int | None = None

    @property
    def model_names(self) -> tuple[str, ...]:
        """What requests may call its model; the first is the one that answers carry."""
        model = self.engine.model
        return model.served_model_name or (Path(model.model).resolve().name,)

    @property
    def model_name(self) -> str:
        return self.model_names[0]

    def __post_init__(self) -> None:
        where = f"pool {self.name!r}"
        if not self.name or not all(part.isalnum() or part in "-_" for part in self.name):
            raise ConfigError(f"{where}: names are of letters, digits, '-' and '_'", param="pools")
        if not 1 <= self.replicas <= _MOST_REPLICAS:
            raise ConfigError(f"{where}: replicas must be from 1 to {_MOST_REPLICAS}, got {self.replicas}", param="pools")
        for name in ("cpus", "gpus"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise ConfigError(f"{where}: {name} must be at least 0, got {value}", param="pools")
        if not 0.0 < self.weight < math.inf:
            raise ConfigError(f"{where}: weight must be above 0, got {self.weight}", param="pools")
        if not self.classes:
            raise ConfigError(f"{where}: classes must not be empty", param="pools")
        if self.min_tokens < 0 or (self.max_tokens is not None and self.max_tokens < max(self.min_tokens, 1)):
            raise ConfigError(
                f"{where}: min_tokens must be at least 0 and max_tokens no less, got {self.min_tokens} and {self.max_tokens}",
                param="pools",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A fleet.

    Attributes:
        address: of the Ray cluster; None for the one that this machine is part of, or a new one on it.
    """

    pools: tuple[PoolConfig, ...]
    server: ServerConfig
    routing: RoutingConfig
    ingress: IngressConfig = IngressConfig()
    address: str | None = None

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        if not names:
            raise ConfigError("pools must name at least one pool", param="pools")
        for name, pools in self.models.items():
            self._check_model(name, pools)

    @property
    def models(self) -> dict[str, list[PoolConfig]]:
        """The pools of each model, by the name that its answers carry, in the order of the file."""
        found: dict[str, list[PoolConfig]] = {}
        for pool in self.pools:
            found.setdefault(pool.model_name, []).append(pool)
        return found

    def _check_model(self, name: str, pools: Sequence[PoolConfig]) -> None:
        first = pools[0]
        of = f" for the model {name!r}" if len(self.models) > 1 else ""
        for pool in pools:
            if (pool.engine.model.model, pool.model_names) != (first.engine.model.model, first.model_names):
                raise ConfigError(
                    f"pools {first.name!r} and {pool.name!r} both serve {name!r}, of {first.engine.model.model} as "
                    f"{', '.join(first.model_names)}, and of {pool.engine.model.model} as {', '.join(pool.model_names)}: "
                    f"two models need names of their own (served-model-name)",
                    param="pools",
                )
        for other in self.pools:
            shared = set(first.model_names) & set(other.model_names)
            if other.model_name != name and shared:
                raise ConfigError(f"pools {first.name!r} and {other.name!r} serve two models as {min(shared)!r}", param="pools")
        gaps = _gaps(pools)
        if gaps:
            raise ConfigError(f"no pool takes requests of class {gaps[0]!r}{of}", param="pools")

    def check_resources(self, cpus: float, gpus: float) -> None:
        """Raise ConfigError if the cluster has not what the replicas take."""
        for name, there in (("cpus", cpus), ("gpus", gpus)):
            wanted = sum(pool.replicas * getattr(pool, name) for pool in self.pools)
            if wanted > there:
                replicas = sum(pool.replicas for pool in self.pools)
                raise ConfigError(f"{replicas} replicas need {wanted:g} {name}, and the cluster has {there:g}", param="pools")


def _gaps(pools: Sequence[PoolConfig]) -> list[str]:
    taken = {one for pool in pools for one in pool.classes}
    return [str(one) for one in ServiceClass if one not in taken]
