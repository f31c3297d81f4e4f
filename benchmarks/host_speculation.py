"""Host time of a step with speculation beside one without, with a device that takes no time.

    python -m benchmarks.host_speculation [--rows 64] [--steps 150]

As `benchmarks.host_loop`, whose loop this is, when all rows decode: without drafts, with those of n-grams and of suffixes, found
in texts that repeat, and with those that a draft model made on the device. All are right and all pay, so that every step verifies
as many as it may: what the host does then is most. Whether to wait for a step's tokens is asked as the engine asks it, and counts
as part of taking the step in. Times are the processor's, not the clock's: they are the same on a machine that others use. Prints
medians in microseconds and writes benchmarks/results/host_speculation.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import machine
from benchmarks.host_loop import PHASES, Loop, medians_of
from jaxserve.commands import wide_console
from jaxserve.config.speculative import SpeculativeConfig
from jaxserve.scheduler.request import Update
from jaxserve.step.plan import Plan, StepResult

RESULTS = Path(__file__).parent / "results" / "host_speculation.json"
MOST = 4  # drafts of a row
PERIOD = 40  # tokens after which texts repeat
WARM = 2 * PERIOD + 20  # steps of a token after which all of them do
DEVICE_S = 0.01  # that every step is said to have taken, whatever is in it: drafts pay
HOST_S = 1e-4
ASKED: dict[str, dict[str, Any] | None] = {
    "decode": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": MOST, "prompt_lookup_max": 5},
    "suffix": {"method": "suffix", "num_speculative_tokens": MOST},
    "draft model": {"method": "draft_model", "model": "any", "num_speculative_tokens": MOST},
}


@dataclass
class DraftLoop(Loop):
    """A loop whose texts repeat; its load says who guesses."""

    def now(self) -> float:
        return time.process_time()

    def asked(self) -> SpeculativeConfig | None:
        self.lengths: dict[str, int] = {}
        self.verified = 0
        given = ASKED[self.load]
        return None if given is None else SpeculativeConfig.of(given)

    def apply(self, plan: Plan, seconds: float) -> list[Update]:
        """Every draft is right."""
        del seconds
        self.scheduler.awaits_tokens(HOST_S)
        drafts = plan.num_drafts
        self.verified += int(drafts.sum())
        tokens = np.zeros((plan.num_rows, 1 + int(drafts.max(initial=0))), np.int32)
        counts = plan.samples * (1 + drafts)
        for row, (name, count) in enumerate(zip(plan.ids, counts.tolist(), strict=True)):
            known = self.lengths.get(name, 0)
            tokens[row, :count] = 3 + np.arange(known, known + count) % PERIOD
            self.lengths[name] = known + count
        return self.scheduler.apply(plan, StepResult(plan.step, tokens, counts), DEVICE_S)


def measure(rows: int, load: str, steps: int) -> dict[str, float]:
    """Medians of the phases of a step, and the drafts of a row."""
    loop = DraftLoop(rows, load)
    for _ in range(WARM):
        loop.step()
    for times in loop.seconds.values():
        times.clear()
    loop.verified = 0
    medians = medians_of(loop, steps)
    return {"drafts a row": loop.verified / (steps * rows), **medians}


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[64])
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.host_speculation")}
    report["median_microseconds"] = {load: {} for load in ASKED}
    shown = Table(title="host time of a step, median microseconds of the processor", title_justify="left")
    for column in ("who guesses", "rows", "drafts a row", *PHASES, "engine", "all"):
        shown.add_column(column, justify="right")
    for load in ASKED:
        for rows in arguments.rows:
            medians = measure(rows, load, arguments.steps)
            report["median_microseconds"][load][rows] = {name: round(value, 1) for name, value in medians.items()}
            drafts, *others = medians.values()
            shown.add_row(load, str(rows), f"{drafts:.1f}", *(f"{value:.0f}" for value in others))
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    wide_console(130).print(shown)


if __name__ == "__main__":
    main()
