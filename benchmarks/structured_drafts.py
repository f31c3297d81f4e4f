"""Steps that answers of a schema take, with and without guesses: the bundled model, one answer at a time.

    python -m benchmarks.structured_drafts [--answers 16]

Two kinds of requests: those whose forced tokens are not chosen, and those that have every token chosen, for they ask for
log-probabilities. Each is written by an engine without guesses and by others with them; their answers must be the same. What is
counted is steps, on a clock that stands still: every guess is verified, and the same is counted on any machine. Writes
benchmarks/results/structured_drafts.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.structured_engine import FORM
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import BuiltEngine, build_engine
from jaxserve.executor.base import Capabilities, Executor, StepHandle
from jaxserve.executor.programs import silent
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.sampling.params import SamplingParams
from jaxserve.step.plan import Plan
from jaxserve.types import RequestOptions

RESULTS = Path(__file__).parent / "results" / "structured_drafts.json"
SIDES: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "ngram": {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "suffix": {"method": "suffix", "num_speculative_tokens": 6},
}
KINDS: dict[str, dict[str, Any]] = {"forced": {}, "every token chosen": {"logprobs": 0}}
SETTINGS: dict[str, Any] = {"model": "pico", "dtype": "float32", "max_num_seqs": 1, "max_model_len": 512}
TOKENS = 256


class Counting:
    """An executor whose steps are counted."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.steps = 0

    def submit(self, plan: Plan) -> StepHandle:
        """One more."""
        self.steps += 1
        return self._executor.submit(plan)

    def capabilities(self) -> Capabilities:
        """The executor's."""
        return self._executor.capabilities()

    def counts(self) -> ExecutorCounts:
        """The executor's."""
        return self._executor.counts()


def answer(built: BuiltEngine, number: int, **more: Any) -> list[int]:
    """The tokens of one answer."""
    prompt = f"List {number} of the orders that were shipped: "
    params = SamplingParams(temperature=0.8, seed=number, max_tokens=TOKENS, structured_outputs=FORM, **more)
    built.core.add(built.intake.prepare(prompt, params, str(number), 0.0, RequestOptions()))
    tokens = []
    while built.core.has_work:
        for update in built.core.step():
            if update.error is not None:
                raise update.error
            tokens += [] if update.token is None else [update.token]
    return tokens


def measure(built: BuiltEngine, numbers: range, **more: Any) -> tuple[dict[str, float], list[list[int]]]:
    """What one kind of answers takes, the mean of all, and the answers."""
    counting, before = Counting(built.core.executor), built.core.scheduler.counts()
    built.core.executor = counting
    texts = [answer(built, number, **more) for number in numbers]
    after = built.core.scheduler.counts()
    each = {
        "tokens": sum(map(len, texts)),
        "steps": counting.steps,
        "forced": after.forced_tokens - before.forced_tokens,
        "drafts": after.spec_decode_num_draft_tokens - before.spec_decode_num_draft_tokens,
        "accepted": after.spec_decode_num_accepted_tokens - before.spec_decode_num_accepted_tokens,
    }
    return {name: round(count / len(numbers), 1) for name, count in each.items()}, texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=16)
    given = parser.parse_args()
    found: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    first: dict[str, list[list[int]]] = {}
    for side, speculative in SIDES.items():
        config = EngineConfig.from_settings({**SETTINGS, "speculative_config": speculative})
        built = build_engine(config, strict_length=True, clock=VirtualClock(), progress=silent)
        for place, (kind, more) in enumerate(KINDS.items()):
            numbers = range(place * given.answers, (1 + place) * given.answers)
            found[kind][side], texts = measure(built, numbers, **more)
            assert first.setdefault(kind, texts) == texts, "an answer is another one with guesses"
            print(kind, side, found[kind][side], flush=True)
    report = {
        **machine.describe(),
        "command": machine.command("benchmarks.structured_drafts"),
        "sides": SIDES,
        "an_answer": found,
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
