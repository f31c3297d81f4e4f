"""What streams say of an engine, and how engines compare."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.peers.clients import Stream

Figures = dict[str, float]
# Of these less is better; of all others more.
LESS_IS_BETTER = frozenset({"seconds", "ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s", "memory_gb"})


def figures(streams: Sequence[Stream]) -> Figures:
    """Rates in tokens a second, times in seconds.

    `decode_tokens_per_s` counts from the last stream's first token to the first stream's end: all decode then, and nobody
    prefills. It is left out where there is no such time.
    """
    begin, end = min(stream.due for stream in streams), max(stream.ended for stream in streams)
    outputs = sum(stream.output_tokens for stream in streams)
    firsts = [stream.arrivals[0][0] - stream.due for stream in streams]
    made = {
        "seconds": end - begin,
        "output_tokens_per_s": outputs / (end - begin),
        "ttft_p50_s": _percentile(firsts, 50),
        "ttft_p99_s": _percentile(firsts, 99),
        "prefill_tokens_per_s": statistics.median(
            len(stream.request.prompt) / first for stream, first in zip(streams, firsts, strict=True)
        ),
    }
    gaps = [
        later - earlier
        for stream in streams
        for (earlier, _), (later, _) in zip(stream.arrivals, stream.arrivals[1:], strict=False)
    ]
    if gaps:
        made |= {"itl_p50_s": _percentile(gaps, 50), "itl_p99_s": _percentile(gaps, 99)}
    if rate := _steady(streams):
        made["decode_tokens_per_s"] = rate
    return made


def _steady(streams: Sequence[Stream]) -> float | None:
    """Tokens a second while every stream decodes; of streams one after another the median of each one's."""
    begin = max(stream.arrivals[0][0] for stream in streams)
    end = min(stream.arrivals[-1][0] for stream in streams)
    if begin < end:
        return sum(_tokens_at(stream, end) - _tokens_at(stream, begin) for stream in streams) / (end - begin)
    ends = [stream.ended for stream in streams]
    if any(stream.due < ended for stream, ended in zip(streams[1:], ends, strict=False)):
        return None
    rates = []
    for stream in streams:
        (first, before), (last, after) = stream.arrivals[0], stream.arrivals[-1]
        if first < last:
            rates.append((after - before) / (last - first))
    return statistics.median(rates) if rates else None


def _tokens_at(stream: Stream, when: float) -> int:
    return max((count for time, count in stream.arrivals if time <= when), default=0)


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures], figure: str) -> dict[str, float]:
    """How many times better we are, round by round: median, least and most. Above 1: we are ahead."""
    values = []
    for own, other in zip(ours, theirs, strict=True):
        ratio = own[figure] / other[figure]
        values.append(1 / ratio if figure in LESS_IS_BETTER else ratio)
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def best_peer(runs: Mapping[str, Sequence[Figures]], own: str, figure: str) -> str:
    """The other engine whose median is best."""
    sign = -1 if figure in LESS_IS_BETTER else 1
    others = [name for name in runs if name != own]
    return max(others, key=lambda name: sign * statistics.median(one[figure] for one in runs[name]))


def _percentile(values: Sequence[float], rank: int) -> float:
    return float(np.percentile(values, rank))
