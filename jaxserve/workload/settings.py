"""What can be asked of a workload, and what counts as good service; flags come from these fields."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from jaxserve.config.check import check_types, require_at_least
from jaxserve.config.fields import setting
from jaxserve.errors import ConfigError
from jaxserve.types import ServiceClass
from jaxserve.workload.arrivals import Pattern

_MAX_SIGMA = 5  # e^5 is 148: lengths spread further than any traffic's
_MAX_RETRIES = 20  # waits double: the 20th is days


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
        require_finite("backoff_s", self.backoff_s, least=0.0)
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
            require_finite(name, value, least=1.0 if name == "peak" else 0.0)
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
            require_finite(name, getattr(self, name), least=0.0)


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


def require_finite(name: str, value: float, *, least: float) -> None:
    """Raise ConfigError unless a setting is at least so much, and finite."""
    if not least <= value < math.inf:
        raise ConfigError(f"{name} must be at least {least:g} and finite, got {value}", param=name)
