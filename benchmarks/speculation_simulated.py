"""When speculation pays, by rows and acceptance: the product's own decisions on a virtual clock.

    python -m benchmarks.speculation_simulated [--rows 1 4]

Llama 3 8B on one H100. There are twice as many requests as rows, all at the beginning, so that rows are full until the last ones
end. Drafts are the host's; their acceptance is drawn. Writes benchmarks/results/speculation_simulated.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import machine
from jaxserve.commands import wide_console
from jaxserve.config.fields import SchedulerConfig
from jaxserve.simulation.report import Report, report
from jaxserve.simulation.scenario import Scenario, simulate
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.workload.settings import WorkloadConfig

RESULTS = Path(__file__).parent / "results" / "speculation_simulated.json"
MOST = 4  # drafts of a row
ROWS = (1, 4, 16, 64, 128, 256)
CHANCES = (0.0, 0.5, 0.8)  # that a draft is right if those before it are


def run(rows: int, chance: float | None) -> Report:
    given = None
    if chance is not None:
        rates = [chance ** (place + 1) for place in range(MOST)]
        given = json.dumps({"method": "ngram", "num_speculative_tokens": MOST, "synthetic_acceptance_rates": rates})
    asked = Scenario(
        replica=ReplicaConfig(model="llama-3-8b", speculative_config=given),
        scheduler=SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=max(512, 2 * rows), max_waiting=100_000),
        workload=WorkloadConfig(requests=2 * rows, rate=1e4, prompt_tokens=64, prompt_sigma=0.0, output_tokens=256),
    )
    return report(asked, simulate(asked))


def row(rows: int, chance: float, plain: Report, drafted: Report) -> dict[str, Any]:
    engines = drafted.engines
    return {
        "rows": rows,
        "chance": chance,
        "tokens_per_s": round(drafted.all.output_tokens_per_s, 1),
        "times_without": round(drafted.all.output_tokens_per_s / plain.all.output_tokens_per_s, 3),
        "itl_mean_ms": round(1e3 * drafted.all.itl.mean, 3),
        "itl_mean_ms_without": round(1e3 * plain.all.itl.mean, 3),
        "tokens_a_row": round(engines.tokens_a_row, 3),
        "acceptance": round(engines.acceptance, 3),
        "draft_tokens": engines.draft_tokens,
    }


def show(found: Iterable[dict[str, Any]]) -> None:
    table = Table(title="Speculation, simulated", title_justify="left")
    for name in ("rows", "chance", "times_without", "tokens_a_row", "acceptance", "itl_mean_ms", "itl_mean_ms_without"):
        table.add_column(name.replace("_", " "), justify="right")
    for one in found:
        table.add_row(*(str(one[str(column.header).replace(" ", "_")]) for column in table.columns))
    wide_console(120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    args = parser.parse_args()
    logging.getLogger("jaxserve").setLevel(logging.ERROR)  # schedulers tell how they adapt
    start, found = time.process_time(), []
    for rows in args.rows:
        plain = run(rows, None)
        found += [row(rows, chance, plain, run(rows, chance)) for chance in CHANCES]
    show(found)
    facts = {**machine.describe(), "command": machine.command("benchmarks.speculation_simulated")}
    facts["processor_seconds"] = round(time.process_time() - start, 1)
    RESULTS.write_text(json.dumps({**facts, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
