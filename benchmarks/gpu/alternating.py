"""Decode steps and steps with a prompt beside the decoding rows in turns, as a server has them that is asked all the time."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.gpu.engine import Engine, begin, device_rounds, end, request, turn
from benchmarks.gpu.sizes import GREEDY, PAGE_SIZE
from benchmarks.gpu.tasks import Figure
from benchmarks.gpu.timing import summary
from benchmarks.plans import make_plan

STEPS = 2  # of a round: one with a prompt, one without


def prompt_tokens(rows: int, step_tokens: int) -> int:
    """Of a prompt that fills a step beside the decoding rows."""
    return step_tokens - rows


def alternating(engine: Engine) -> Figure:
    """Seconds of a round in the engine's loop, and of the device alone. All rows but one decode; the last is the prompts'.

    Raises RuntimeError if the prompts were not computed in a step each.
    """
    sizes, core = engine.sizes, engine.core
    rows = max(sizes.rows) - 1
    prompt = prompt_tokens(rows, sizes.step_tokens)
    produced, _ = begin(engine, f"alternating {GREEDY}", rows, GREEDY)
    rng = np.random.default_rng(0)
    rounds = []
    for number in range(sizes.steps // STEPS):
        start = time.perf_counter()
        core.add([request(engine, f"prompt {number}", rng, prompt, 1)])
        for _ in range(STEPS):
            turn(core, produced)
        rounds.append(time.perf_counter() - start)
    done = len(produced) - rows
    end(core, list(produced))
    if done < len(rounds) - 1:  # the last one's token may be in flight
        raise RuntimeError(f"{done} prompts of {len(rounds)} were computed")
    length = sizes.context + sizes.steps
    plans = [
        make_plan(shape, PAGE_SIZE, engine.decoder.vocab_size)
        for shape in (((1,) * rows, (length,) * rows), ((1,) * rows + (prompt,), (length,) * rows + (prompt,)))
    ]
    device = device_rounds(engine.executor, plans, max(sizes.burst // STEPS, 1))
    return summary(rounds) | {"device": device, "rows": rows, "prompt": prompt}
