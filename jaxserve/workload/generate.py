"""Generated requests: arrivals, log-normal lengths, classes, tenants, shared prefixes; the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from random import Random

from jaxserve.errors import ConfigError
from jaxserve.types import ServiceClass
from jaxserve.workload.arrivals import ArrivalProcess
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import WorkloadConfig, parse_classes, parse_shares

_DEFAULT_PEAK = {"poisson": 1.0, "bursts": 10.0, "diurnal": 4.0, "spike": 10.0}
_BURST_PERIOD_S = 60.0


def arrival_process(config: WorkloadConfig) -> ArrivalProcess:
    """The process with every default filled in."""
    steady = config.requests / config.rate
    period = steady if config.arrivals == "diurnal" else _BURST_PERIOD_S
    return ArrivalProcess(
        pattern=config.arrivals,
        rate=config.rate,
        peak=_DEFAULT_PEAK[config.arrivals] if config.peak is None else config.peak,
        period=period if config.period_s is None else config.period_s,
        start=steady / 3 if config.spike_at_s is None else config.spike_at_s,
        duration=steady / 30 if config.spike_for_s is None else config.spike_for_s,
    )


def generate(config: WorkloadConfig, max_model_len: int, default_class: ServiceClass) -> Iterator[WorkloadRequest]:
    """The requests in order of arrival; lengths are cut to what the context holds.

    Args:
        config: the workload.
        max_model_len: tokens of the context.
        default_class: of requests if the workload names no classes.

    Raises ConfigError: a request of median length does not fit the context.
    """
    typical = config.prefix_tokens + config.prompt_tokens + config.output_tokens
    if typical > max_model_len:
        raise ConfigError(
            f"a typical request has {config.prefix_tokens} + {config.prompt_tokens} + {config.output_tokens} tokens, "
            f"but the context is {max_model_len}",
            param="prompt_tokens",
        )
    arrivals, lengths = Random(f"arrivals {config.seed}"), Random(f"lengths {config.seed}")
    tenants = parse_shares(config.tenants, "tenants")
    classes = {default_class: 1.0} if config.classes is None else parse_classes(config.classes)
    ranks = Random(f"classes {config.seed}")
    for number, time in enumerate(islice(arrival_process(config).times(arrivals), config.requests)):
        prompt = _length(lengths, config.prompt_tokens, config.prompt_sigma)
        prompt = min(prompt, max_model_len - config.prefix_tokens - 1)
        output = _length(lengths, config.output_tokens, config.output_sigma)
        tenant = lengths.choices(list(tenants), list(tenants.values()))[0]
        yield WorkloadRequest(
            number=number,
            arrival=time,
            prompt_tokens=config.prefix_tokens + prompt,
            output_tokens=min(output, max_model_len - config.prefix_tokens - prompt),
            service_class=ranks.choices(list(classes), list(classes.values()))[0],
            tenant=tenant,
            prefix=lengths.randrange(config.prefixes) if config.prefixes else None,
            prefix_tokens=config.prefix_tokens,
        )


def _length(random: Random, median: int, sigma: float) -> int:
    """A log-normal length of at least 1."""
    return max(1, round(median * math.exp(sigma * random.gauss(0.0, 1.0))))
