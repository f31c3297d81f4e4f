"""What can be asked of a simulation; the flags of `python -m jaxserve.simulate` come from these fields."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from jaxserve.config.check import check_types
from jaxserve.config.fields import require_at_least, setting
from jaxserve.errors import ConfigError
from jaxserve.planner.memory import KvFormat, WeightFormat
from jaxserve.simulation.arrivals import Pattern
from jaxserve.types import ServiceClass

DEFAULT_HARDWARE = "h100"

_MAX_SIGMA = 5  # e^5 is 148: lengths spread further than any traffic's
_FITTED = ("compute_efficiency", "attention_efficiency", "memory_efficiency", "memory_overlap", "launch_us", "host_us")
_MAX_RETRIES = 20  # waits double: the 20th is days


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """The replicas: model, hardware, and how real steps differ from the data sheet."""

    model: str = setting("llama-3-8b", "a known shape, a checkpoint directory or a config.json", positional=True)
    hardware: str | None = setting(None, "GPU; an unknown name lists them (default: the machine of --profile, else h100)")
    profile: str | None = setting(None, "JSON file of measured steps, from which every factor below but the network's is fitted")
    tp: int = setting(1, "GPUs that share every layer: one replica")
    replicas: int = setting(1, "replicas behind a router that sends each request to the one with fewest in flight")
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
            _require_finite(name, getattr(self, name), least=0.0)
        if not 0.0 < self.swap_gbps < math.inf:
            raise ConfigError(f"swap_gbps must be above 0 and finite, got {self.swap_gbps}", param="swap_gbps")
        if self.profile is not None:
            self._check_fitted()

    def _check_fitted(self) -> None:
        """A profile says what the other factors would."""
        for item in fields(self):
            if item.name in _FITTED and getattr(self, item.name) != item.default:
                raise ConfigError(f"{item.name} is fitted to the profile, and profile is given", param=item.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Who asks for what, and when."""

    trace: str | None = setting(None, "JSONL file of requests, in place of the generated ones")
    requests: int = setting(1000, "requests to generate")
    rate: float = setting(10.0, "mean arrivals a second (of 'bursts' and 'spike': outside them)")
    arrivals: Pattern = setting("poisson", "how the rate changes with time")  # noqa: RUF009 - makes a dataclass field
    peak: float | None = setting(None, "bursts, spike: times the rate; diurnal: crest over trough (default: 10, diurnal: 4)")
    period_s: float | None = setting(None, "seconds of a burst cycle (default: 60) or of a day (default: the run's length)")
    spike_at_s: float | None = setting(None, "second at which the spike begins (default: a third of the run without it)")
    spike_for_s: float | None = setting(None, "seconds that the spike lasts (default: a thirtieth of the run without it)")
    prompt_tokens: int = setting(512, "median length of prompts, log-normal, shared prefix not counted")
    prompt_sigma: float = setting(0.8, "spread of the logarithm of prompt lengths; 0 for equal lengths")
    output_tokens: int = setting(128, "median length of outputs, log-normal")
    output_sigma: float = setting(0.6, "spread of the logarithm of output lengths; 0 for equal lengths")
    classes: str | None = setting(
        None, "service classes and their shares of the requests, as CLASS=SHARE, comma-separated; --default-class by default"
    )
    tenants: str = setting("default=1", "tenants and their shares of the requests, as NAME=SHARE, comma-separated")
    prefixes: int = setting(0, "shared prefixes; every prompt begins with one of them")
    prefix_tokens: int = setting(0, "tokens of a shared prefix")
    seed: int = setting(0, "seed of arrivals, lengths and waits before retries")
    retries: int = setting(0, "times that a refused request comes back before its client gives up")
    backoff_s: float = setting(1.0, "seconds before the first retry, doubled with each; never less than the server asks for")

    def __post_init__(self) -> None:
        check_types(self)
        if self.trace is not None:
            self._check_alone()
        for name in ("requests", "prompt_tokens", "output_tokens"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("prefixes", "prefix_tokens"):
            require_at_least(name, getattr(self, name), 0)
        for name, most in (("prompt_sigma", _MAX_SIGMA), ("output_sigma", _MAX_SIGMA), ("retries", _MAX_RETRIES)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be between 0 and {most}, got {getattr(self, name)}", param=name)
        _require_finite("backoff_s", self.backoff_s, least=0.0)
        if not 0.0 < self.rate < math.inf:
            raise ConfigError(f"rate must be above 0 and finite, got {self.rate}", param="rate")
        if (self.prefixes > 0) != (self.prefix_tokens > 0):
            raise ConfigError(
                f"prefixes ({self.prefixes}) and prefix_tokens ({self.prefix_tokens}) need each other", param="prefixes"
            )
        self._check_pattern()
        parse_shares(self.tenants, "tenants")
        if self.classes is not None:
            parse_classes(self.classes)

    def _check_alone(self) -> None:
        """A trace says everything but how clients retry."""
        for item in fields(self):
            if item.name not in ("trace", "seed", "retries", "backoff_s") and getattr(self, item.name) != item.default:
                raise ConfigError(f"{item.name} is for generated requests, and trace is given", param=item.name)

    def _check_pattern(self) -> None:
        users = {
            "peak": ("bursts", "diurnal", "spike"),
            "period_s": ("bursts", "diurnal"),
            "spike_at_s": ("spike",),
            "spike_for_s": ("spike",),
        }
        for name, patterns in users.items():
            value = getattr(self, name)
            if value is None:
                continue
            if self.arrivals not in patterns:
                raise ConfigError(f"{name} is for arrivals {' and '.join(patterns)}, not {self.arrivals}", param=name)
            _require_finite(name, value, least=1.0 if name == "peak" else 0.0)
        if self.period_s == 0.0:
            raise ConfigError("period_s must be above 0", param="period_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SloConfig:
    """What counts as good service: goodput counts the tokens of requests that kept both."""

    slo_ttft_ms: float = setting(500.0, "milliseconds to the first token at most")
    slo_itl_ms: float = setting(50.0, "mean milliseconds between a request's tokens at most")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("slo_ttft_ms", "slo_itl_ms"):
            _require_finite(name, getattr(self, name), least=0.0)


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


def parse_classes(text: str) -> dict[ServiceClass, float]:
    """Shares of classes from CLASS=SHARE, comma-separated. Raises ConfigError for anything else."""
    shares = parse_shares(text, "classes")
    unknown = [name for name in shares if name not in tuple(ServiceClass)]
    if unknown:
        raise ConfigError(f"classes must be of {', '.join(ServiceClass)}, got {unknown[0]!r}", param="classes")
    return {ServiceClass(name): share for name, share in shares.items()}


def parse_shares(text: str, param: str) -> dict[str, float]:
    """Shares from NAME=SHARE, comma-separated. Raises ConfigError naming `param` for anything else."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            value = float(share)
        except ValueError:
            value = math.nan
        if not name or name in shares or not 0.0 < value < math.inf:
            raise ConfigError(f"{param} must be NAME=SHARE, names different, shares above 0, got {part!r}", param=param)
        shares[name] = value
    return shares


def _require_finite(name: str, value: float, *, least: float) -> None:
    if not least <= value < math.inf:
        raise ConfigError(f"{name} must be at least {least:g} and finite, got {value}", param=name)
