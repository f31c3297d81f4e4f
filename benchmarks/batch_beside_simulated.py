"""What interactive requests notice of an endless batch beside them, on the simulator: the product's own scheduler, no noise.

    python -m benchmarks.batch_beside_simulated [--rates 0.5 4 16 24] [--itl-target-ms 50]

llama-3-8b on one H100, 64 rows, steps of at most 2,048 tokens; interactive requests arrive at random, and as many batch requests
are in flight as keep every row busy: a quarter more than rows. Writes benchmarks/results/batch_beside_simulated.json and prints a
table.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from jaxserve.config.fields import SchedulerConfig
from jaxserve.simulation.fleet import Fleet
from jaxserve.simulation.ledger import Tally, merged
from jaxserve.simulation.scenario import Scenario, build
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.types import ServiceClass
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import SloConfig, WorkloadConfig
from jaxserve.workload.stats import Percentiles

RESULTS = Path(__file__).parent / "results" / "batch_beside_simulated.json"
ROWS, TOKENS = 64, 2048
IN_FLIGHT = ROWS + ROWS // 4
_SECONDS, _LEAST_REQUESTS = 25.0, 120
_FIRST_BATCH_NUMBER = 10**6


class Backlog:
    """Batch requests that come as others end."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._random = Random(1)
        self._sent = 0

    def keep(self) -> None:
        """As many in flight as there should be."""
        ended = of_class(self._fleet, ServiceClass.BATCH)
        for _ in range(IN_FLIGHT - (self._sent - ended.finished - ended.refused)):
            record = self._fleet.ledger.receive(self._request(), self._fleet.now)
            self._fleet._route(record)

    def _request(self) -> WorkloadRequest:
        self._sent += 1
        prompt, output = (
            1 + int(min(longest, self._random.lognormvariate(math.log(median), sigma)))
            for median, sigma, longest in ((512, 0.8, 3000), (128, 0.6, 1000))
        )
        return WorkloadRequest(
            number=_FIRST_BATCH_NUMBER + self._sent,
            arrival=self._fleet.now,
            prompt_tokens=prompt,
            output_tokens=output,
            service_class=ServiceClass.BATCH,
            tenant="batch",
        )


def of_class(fleet: Fleet, service_class: ServiceClass) -> Tally:
    """What became of a class's requests so far."""
    return merged(tally for (_, name, _), tally in fleet.ledger.tallies.items() if name == service_class)


def run(rate: float, itl_target_ms: float, *, beside: bool) -> dict[str, Any]:
    """Interactive times in milliseconds, and output tokens a second of both."""
    requests = max(_LEAST_REQUESTS, int(rate * _SECONDS))
    scenario = Scenario(
        replica=ReplicaConfig(prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=TOKENS, itl_target_ms=itl_target_ms),
        workload=WorkloadConfig(requests=requests, rate=rate, prompt_tokens=512, output_tokens=128),
        slo=SloConfig(),
    )
    fleet = build(scenario)
    backlog = Backlog(fleet)
    ended = 0
    while ended < requests and fleet.step():
        if beside:
            backlog.keep()
        mine = of_class(fleet, ServiceClass.INTERACTIVE_PAID)
        ended = mine.finished + mine.refused + mine.expired
    ttft, itl = Percentiles.of(np.array(mine.ttft)), mine.itl.percentiles()
    return {
        "finished": mine.finished,
        "ttft_ms": {"p50": 1e3 * ttft.p50, "p99": 1e3 * ttft.p99},
        "itl_ms": {"p50": 1e3 * itl.p50, "p99": 1e3 * itl.p99},
        "output_tokens_per_s": mine.output_tokens / fleet.now,
        "batch_output_tokens_per_s": of_class(fleet, ServiceClass.BATCH).output_tokens / fleet.now,
    }


def table(runs: list[dict[str, Any]]) -> Table:
    """Both, and their ratio."""
    shown = Table(title="llama-3-8b on one H100, simulated: p99, milliseconds", title_justify="left")
    for column in (
        "requests/s",
        "TTFT alone",
        "beside a batch",
        "ratio",
        "ITL alone",
        "beside a batch",
        "ratio",
        "batch tokens/s",
    ):
        shown.add_column(column, justify="right")
    for one in runs:
        cells = []
        for name in ("ttft_ms", "itl_ms"):
            alone, beside = one["alone"][name]["p99"], one["beside"][name]["p99"]
            cells += [f"{alone:.1f}", f"{beside:.1f}", f"{beside / alone:.2f}"]
        shown.add_row(f"{one['rate']:g}", *cells, f"{one['beside']['batch_output_tokens_per_s']:,.0f}")
    return shown


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 4.0, 16.0, 24.0], help="interactive requests a second")
    parser.add_argument("--itl-target-ms", type=float, default=50.0)
    given = parser.parse_args()
    runs = []
    for rate in given.rates:
        both = {name: run(rate, given.itl_target_ms, beside=name == "beside") for name in ("alone", "beside")}
        runs.append({"rate": rate, **both})
    report = {**machine.describe(), "command": " ".join(["python -m benchmarks.batch_beside_simulated", *sys.argv[1:]])}
    RESULTS.write_text(json.dumps({**report, "itl_target_ms": given.itl_target_ms, "runs": runs}, indent=1) + "\n")
    Console(width=120).print(table(runs))


if __name__ == "__main__":
    main()
