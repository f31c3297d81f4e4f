"""What clients saw in a minute, and what a whole run says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.load.batches import Batch
from benchmarks.load.clients import Answer

REFERENCE = 3  # the minute that the last one is held against, counted from 1: what is before warms up
TTFT_GROWTH = 1.5  # of its p99, at most
Row = dict[str, Any]


def seen(answers: Sequence[Answer]) -> Row:
    """Of the requests that were due in a minute; those that are still open count as open."""
    ended = [answer for answer in answers if answer.ended]
    return {
        "requests": len(answers),
        "open": len(answers) - len(ended),
        "left": sum(answer.left for answer in ended),
        "errors": dict(Counter(answer.error for answer in ended if answer.error)),
        "kinds": dict(Counter(str(answer.ask.kind) for answer in answers)),
        "ttft_s": percentiles([answer.ttft for answer in answers if answer.ttft is not None]),
        "itl_s": percentiles([gap for answer in answers for gap in answer.gaps]),
        "whole_s": percentiles([answer.ended - answer.due for answer in ended if not answer.error and not answer.left]),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the most; nothing of nothing."""
    if not values:
        return {}
    p50, p99, most = np.percentile(np.array(values), (50, 99, 100))
    return {"p50": round(float(p50), 4), "p99": round(float(p99), 4), "max": round(float(most), 4)}


def verdicts(rows: Sequence[Row], batches: Sequence[Batch], end: Mapping[str, Any]) -> list[Row]:
    """What was to hold, what was found, and whether it held.

    Args:
        rows: minutes.
        batches: all of the run.
        end: after everybody has ended: `requests` by fate, and sequences `running`, `waiting` and the share of `pages` held.
    """
    made = [_growth(rows)] if len(rows) > REFERENCE else []
    fates = end["requests"]
    others = fates["finished"] + fates["aborted"] + fates["rejected"]
    made.append(_verdict("received == finished + aborted + rejected", fates, fates["received"] == others))
    left = {name: end[name] for name in ("running", "waiting", "pages")}
    made.append(_verdict("nothing runs, waits or holds pages at the end", left, not any(left.values())))
    errors: Counter[str] = sum((Counter(row["errors"]) for row in rows), Counter())
    made.append(_verdict("no errors, and nobody unanswered", dict(errors), not errors and not any(row["open"] for row in rows)))
    done = {"batches": len(batches), "lines": sum(batch.lines for batch in batches)}
    done["completed"] = sum(batch.completed for batch in batches)
    whole = all(batch.completed == batch.lines and not batch.error for batch in batches)
    made.append(_verdict("every line of every batch is answered", done, whole))
    return made


def _growth(rows: Sequence[Row]) -> Row:
    first, last = (row["ttft_s"].get("p99") for row in (rows[REFERENCE - 1], rows[-1]))
    ratio = last / first if first and last else None
    found = {f"minute {REFERENCE}": first, "last minute": last, "ratio": None if ratio is None else round(ratio, 3)}
    return _verdict(f"TTFT p99 grows by {TTFT_GROWTH} at most", found, ratio is not None and ratio <= TTFT_GROWTH)


def _verdict(what: str, found: Mapping[str, Any], holds: bool) -> Row:
    return {"what": what, "found": dict(found), "holds": holds}
