"""Interactive streams that arrive whatever the server does, or one after another, and what they say of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load.clients import code
from benchmarks.load.minutes import percentiles
from benchmarks.peers.clients import Stream, exchange
from benchmarks.peers.workloads import Request, mixed

LONGEST_OUTPUT = 128
REFUSALS = (429, 503)
WARM_UP = 0.25  # of a closed loop
_AT_ONCE = 1000  # requests of a closed loop that are made at a time
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests go.

    Attributes:
        url: the server's.
        fields: what every request says besides.
        patience: seconds after which a client gives up.
    """

    url: str
    fields: Mapping[str, Any]
    patience: float


@dataclass(frozen=True, slots=True)
class Objective:
    """What an answer must keep to count: seconds to the first token, and a token after it in the mean."""

    ttft: float
    tpot: float


@dataclass(slots=True)
class Asked:
    """A request and what became of it. Times are seconds of `time.perf_counter`.

    Attributes:
        stream: what was asked, and what came.
        sent: when it was; it was to be at `stream.due`.
        ended: when it was over, however.
        status: of the reply; 0 without one.
        error: status and the server's code, or what the network said; empty for an answer that is whole.
    """

    stream: Stream
    sent: float = 0.0
    ended: float = 0.0
    status: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Seconds from when it was due; of one that has text."""
        return self.stream.arrivals[0][0] - self.stream.due

    @property
    def tpot(self) -> float:
        """Mean seconds of a token after those that came first; of one that has text."""
        (first, some), (last, every) = self.stream.arrivals[0], self.stream.arrivals[-1]
        return (last - first) / (every - some) if every > some else 0.0

    def keeps(self, objective: Objective) -> bool:
        """Whether it counts."""
        return not self.error and self.ttft <= objective.ttft and self.tpot <= objective.tpot


async def send(place: Place, asked: Asked) -> None:
    """Send a request and fill in what becomes of it."""
    asked.sent = time.perf_counter()
    try:
        async with asyncio.timeout(place.patience):
            asked.status, body = await exchange(place.url, place.fields, asked.stream)
    except TimeoutError:
        asked.error = "gave up"
    except OSError as error:
        asked.error = f"network: {error}"
    else:
        if asked.status != 200 or asked.stream.output_tokens != asked.stream.request.output or not asked.stream.arrivals:
            asked.error = f"{asked.status} {code(body) or 'cut off'}"
    asked.ended = time.perf_counter()


async def open_loop(place: Place, rate: float, seconds: float, seed: int) -> list[Asked]:
    """Poisson arrivals for so many seconds; returns when all are over."""
    requests = mixed(round(rate * seconds), rate, LONGEST_OUTPUT)(seed)
    begin = time.perf_counter()
    made = [Asked(Stream(request, due=begin + request.arrival)) for request in requests]

    async def arriving(asked: Asked) -> None:
        await asyncio.sleep(max(0.0, asked.stream.due - time.perf_counter()))
        await send(place, asked)

    await asyncio.gather(*map(arriving, made))
    return made


async def closed_loop(place: Place, clients: int, seconds: float) -> float:
    """Requests a second that are answered while so many clients always have one open."""
    begin = time.perf_counter()
    made: list[Asked] = []
    requests = _endless()

    async def client() -> None:
        for request in requests:
            asked = Asked(Stream(request, due=time.perf_counter()))
            if asked.stream.due > begin + seconds:
                return
            await send(place, asked)
            made.append(asked)

    await asyncio.gather(*(client() for _ in range(clients)))
    first, last = begin + WARM_UP * seconds, begin + seconds
    return sum(not asked.error and first <= asked.ended < last for asked in made) / (last - first)


def _endless() -> Iterator[Request]:
    for seed in itertools.count(1):
        yield from mixed(_AT_ONCE, longest_output=LONGEST_OUTPUT)(-seed)


async def recovered(place: Place, seconds: float) -> float | None:
    """Seconds until a request is sent that is answered within one second; None if none is for so long."""
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        asked = Asked(Stream(Request([5] * 8, 1), due=now))
        await send(place, asked)
        if not asked.error and asked.ended - now <= 1.0:
            return round(now - begin, 3)
        await asyncio.sleep(0.5)
    return None


def figures(made: Sequence[Asked], seconds: float, objective: Objective) -> Figures:
    """Of requests that were due within so many seconds. Times are in seconds, rates in requests a second."""
    answered = [asked for asked in made if not asked.error]
    refused = [asked for asked in made if asked.status in REFUSALS]
    errors = Counter(asked.error for asked in made if asked.error)
    return {
        "asked": len(made),
        "answered": len(answered),
        "goodput": sum(asked.keeps(objective) for asked in made) / seconds,
        "in_time": sum(asked.ttft <= objective.ttft for asked in answered),
        "ttft_s": percentiles([asked.ttft for asked in answered]),
        "tpot_s": percentiles([asked.tpot for asked in answered]),
        "refused": len(refused),
        "refusal_s": percentiles([asked.ended - asked.sent for asked in refused]),
        "gave_up": errors["gave up"],
        "network_errors": sum(count for error, count in errors.items() if error.startswith("network")),
        "errors": dict(errors),
        "lag_s": percentiles([asked.sent - asked.stream.due for asked in made]),
    }
