"""From one replica to a fleet: how many requests it runs at once, what it serves, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxserve.errors import ConfigError
from jaxserve.planner.memory import Layout, MemoryBudget, concurrency
from jaxserve.planner.roofline import Machine, decode_step, prefill_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be served.

    Attributes:
        prompt, output: tokens a request.
        users: requests in flight at any time; None if not given.
        requests_per_second: arrivals; None if not given.
        itl_s: longest mean time between a request's tokens, seconds.
        utilisation: share of a replica's capacity that is planned with, in (0, 1].
        price_per_hour: of one GPU, USD.
    """

    prompt: int
    output: int
    users: int | None
    requests_per_second: float | None
    itl_s: float
    utilisation: float
    price_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica at full load: `batch` requests decode, and the prompts of those that follow share its steps.

    Attributes:
        batch: requests in flight.
        kv_batch: requests whose prompt and output the KV cache holds; `batch` at most.
        itl_s: mean seconds between a request's tokens, prompts of others included.
        decode_s, prefill_s: seconds of a decode step alone, and of a prompt alone.
        prefill_share: share of the time that goes to prompts.
        tokens_per_s, requests_per_s: output tokens and requests a second.
        limit: what keeps the batch, and so the throughput, from growing.
        usd_per_m_tokens, usd_per_m_tokens_planned: USD a million output tokens at full load and at the planned utilisation.
    """

    batch: int
    kv_batch: int
    itl_s: float
    decode_s: float
    prefill_s: float
    prefill_share: float
    tokens_per_s: float
    requests_per_s: float
    limit: str
    usd_per_m_tokens: float
    usd_per_m_tokens_planned: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas side by side.

    Attributes:
        needed: replicas that the load needs; None without a load.
        users, requests_per_s, tokens_per_s: what the fleet serves at the planned utilisation.
    """

    replicas: int
    gpus: int
    needed: int | None
    users: int
    requests_per_s: float
    tokens_per_s: float
    usd_per_hour: float


def replica(layout: Layout, memory: MemoryBudget, rates: Machine, load: Load) -> Replica:
    """The largest batch that memory holds and whose mean ITL is within the target.

    Raises ConfigError: not one request fits, or none meets the target.
    """
    kv_batch = concurrency(layout, memory, load.prompt + load.output)
    if kv_batch < 1:
        raise ConfigError(
            f"a request of {load.prompt} + {load.output} tokens does not fit: the KV cache holds {memory.kv_tokens:,}",
            param="prompt",
        )
    prefill_s = prefill_step(layout, rates, load.prompt).total_s

    def itl(batch: int) -> float:  # in the steady state, batch / output prompts are computed for each decode step
        return decode_step(layout, rates, batch, load.prompt + load.output // 2).total_s + prefill_s * batch / load.output

    if itl(1) > load.itl_s:
        raise ConfigError(
            f"an ITL of {load.itl_s * 1e3:g} ms cannot be met: one request alone takes {itl(1) * 1e3:.1f} ms a token",
            param="itl_ms",
        )
    batch, high = 1, kv_batch + 1  # the first meets the target, the second is too many
    while high - batch > 1:
        middle = (batch + high) // 2
        batch, high = (middle, high) if itl(middle) <= load.itl_s else (batch, middle)
    step = decode_step(layout, rates, batch, load.prompt + load.output // 2)
    share = 1 - step.total_s / itl(batch)
    tokens_per_s = batch / itl(batch)
    busy = f"prefill {share:.0%}, then decode's {step.limit}" if share >= 0.5 else f"{step.limit} of decode, prefill {share:.0%}"
    price = usd_per_m_tokens(layout.tp * load.price_per_hour, tokens_per_s)
    return Replica(
        batch=batch,
        kv_batch=kv_batch,
        itl_s=itl(batch),
        decode_s=step.total_s,
        prefill_s=prefill_s,
        prefill_share=share,
        tokens_per_s=tokens_per_s,
        requests_per_s=tokens_per_s / load.output,
        limit="KV capacity" if batch == kv_batch else f"ITL target ({busy})",
        usd_per_m_tokens=price,
        usd_per_m_tokens_planned=price / load.utilisation,
    )


def fleet(layout: Layout, one: Replica, load: Load, replicas: int | None) -> Fleet:
    needed = replicas_needed(one, load)
    count = replicas or needed or 1
    return Fleet(
        replicas=count,
        gpus=count * layout.tp,
        needed=needed,
        users=int(count * one.batch * load.utilisation + 1e-9),
        requests_per_s=count * one.requests_per_s * load.utilisation,
        tokens_per_s=count * one.tokens_per_s * load.utilisation,
        usd_per_hour=count * layout.tp * load.price_per_hour,
    )


def replicas_needed(one: Replica, load: Load) -> int | None:
    """Replicas for the load at its utilisation; None without a load."""
    if load.users is not None:
        wanted = load.users / one.batch
    elif load.requests_per_second is not None:
        wanted = load.requests_per_second / one.requests_per_s
    else:
        return None
    return math.ceil(wanted / load.utilisation - 1e-9)  # 2.1 / 0.7 is a hair above 3 in floating point


def usd_per_m_tokens(usd_per_hour: float, tokens_per_s: float) -> float:
    return usd_per_hour / (tokens_per_s * 3600) * 1e6
