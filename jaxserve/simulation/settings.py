"""What can be asked of a simulation; the flags of `python -m jaxserve.simulate` come from these fields."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from jaxserve.config.check import check_types, require_at_least
from jaxserve.config.fields import setting
from jaxserve.errors import ConfigError
from jaxserve.planner.memory import KvFormat, WeightFormat
from jaxserve.routing.make import RouterName
from jaxserve.simulation.drafts import parse_speculation
from jaxserve.simulation.scaling import parse_scaling
from jaxserve.workload.settings import require_finite

DEFAULT_HARDWARE = "h100"

_FITTED = ("compute_efficiency", "attention_efficiency", "memory_efficiency", "memory_overlap", "launch_us", "host_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """The replicas: model, hardware, and how real steps differ from the data sheet."""

    model: str = setting("llama-3-8b", "a known shape, a checkpoint directory or a config.json", positional=True)
    hardware: str | None = setting(None, "GPU; an unknown name lists them (default: the machine of --profile, else h100)")
    profile: str | None = setting(None, "JSON file of measured steps, from which every factor below but the network's is fitted")
    tp: int = setting(1, "GPUs that share every layer: one replica")
    replicas: int = setting(1, "replicas behind a router")
    router: RouterName = setting("least_loaded", "how the router chooses a replica")  # noqa: RUF009 - makes a dataclass field
    autoscale: str | None = setting(
        None,
        "let the fleet scale, as NAME=NUMBER, comma-separated: max, min, replica-work, start-seconds, cooldown-seconds, "
        "horizon-seconds and whatever else a fleet's file says of a pool's replicas",
    )
    price: float | None = setting(None, "USD an hour for one GPU; the hardware table's by default")
    fail: str | None = setting(None, "replicas that fail and when, as REPLICA@SECONDS or REPLICA@SECONDS-BACK, comma-separated")
    weights: WeightFormat = setting("bf16", "format of the weights")  # noqa: RUF009 - makes a dataclass field
    kv_dtype: KvFormat = setting("bf16", "format of the KV cache")  # noqa: RUF009
    page_size: int = setting(16, "tokens a page of the KV cache")
    num_pages: int | None = setting(None, "pages of a replica's KV cache, the null page included; what memory holds by default")
    prefix_caching: bool = setting(True, "share full pages of equal prompt prefixes between requests")
    swap_gib: float = setting(0.0, "host memory of a replica that pages of preempted requests are swapped to, GiB")
    swap_gbps: float = setting(55.0, "what a GPU's link to the host moves in one direction, GB/s; 55 is PCIe 5 x16")
    max_model_len: int | None = setting(None, "longest prompt plus output in tokens; the model's own limit by default")
    compute_efficiency: float = setting(0.6, "share of the peak FLOP/s that products with weights reach")
    attention_efficiency: float = setting(0.6, "share of the peak FLOP/s that products with keys and values reach")
    memory_efficiency: float = setting(1.0, "share of the peak HBM bandwidth that reads reach")
    network_efficiency: float = setting(1.0, "share of the peak NVLink bandwidth that all-reduces reach")
    memory_overlap: float = setting(1.0, "share of the shorter of memory and arithmetic time that hides behind the longer")
    speculative_config: str | None = setting(
        None,
        "JSON object with vLLM's fields, who guesses tokens: as in jaxserve serve, and how often that is right: "
        "synthetic_acceptance_rates or synthetic_acceptance_length",
    )
    launch_us: float = setting(50.0, "microseconds a step takes on the device beyond its work")
    host_us: float = setting(500.0, "microseconds the host takes to plan a step and take in another")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("tp", "replicas", "page_size"):
            require_at_least(name, getattr(self, name), 1)
        for name, low in (("num_pages", 2), ("max_model_len", 2)):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), low)
        for name in ("compute_efficiency", "attention_efficiency", "memory_efficiency", "network_efficiency"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be in (0, 1], got {getattr(self, name)}", param=name)
        if not 0.0 <= self.memory_overlap <= 1.0:
            raise ConfigError(f"memory_overlap must be in [0, 1], got {self.memory_overlap}", param="memory_overlap")
        for name in ("launch_us", "host_us", "swap_gib"):
            require_finite(name, getattr(self, name), least=0.0)
        if not 0.0 < self.swap_gbps < math.inf:
            raise ConfigError(f"swap_gbps must be above 0 and finite, got {self.swap_gbps}", param="swap_gbps")
        if self.price is not None:
            require_finite("price", self.price, least=0.0)
        if parse_scaling(self.autoscale) is not None:
            for name, given in (("replicas", self.replicas != 1), ("fail", self.fail is not None)):
                if given:
                    raise ConfigError(f"{name} is for fleets that do not scale, and autoscale is given", param=name)
        parse_speculation(self.speculative_config)
        if self.profile is not None:
            self._check_fitted()

    def _check_fitted(self) -> None:
        for item in fields(self):
            if item.name in _FITTED and getattr(self, item.name) != item.default:
                raise ConfigError(f"{item.name} is fitted to the profile, and profile is given", param=item.name)


@dataclass(frozen=True, slots=True)
class Outage:
    """A replica that fails.

    Attributes:
        replica: counted from 0.
        start: seconds.
        end: seconds at which it is back with an empty cache, or None.
    """

    replica: int
    start: float
    end: float | None


def parse_outages(text: str | None, replicas: int) -> tuple[Outage, ...]:
    """Outages from REPLICA@SECONDS[-BACK], comma-separated. Raises ConfigError for anything else."""
    outages = []
    for part in [] if text is None else text.split(","):
        name, _, times = part.partition("@")
        start, dash, end = times.partition("-")
        try:
            outage = Outage(int(name), float(start), float(end) if dash else None)
        except ValueError as error:
            raise ConfigError(f"fail must be REPLICA@SECONDS or REPLICA@SECONDS-BACK, got {part!r}", param="fail") from error
        if not 0 <= outage.replica < replicas:
            raise ConfigError(f"fail names replica {outage.replica}, but there are {replicas}, counted from 0", param="fail")
        if not (0.0 <= outage.start < math.inf and (outage.end is None or outage.start < outage.end < math.inf)):
            raise ConfigError(f"fail must name times in order, got {part!r}", param="fail")
        outages.append(outage)
    return tuple(outages)
