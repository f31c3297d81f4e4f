"""A replay on a terminal."""

from __future__ import annotations

import time

from rich import box
from rich.console import Console
from rich.table import Table

from jaxserve.planner.units import milliseconds, plural
from jaxserve.planner.units import time as duration
from jaxserve.record.recording import Recording
from jaxserve.record.replay import Difference, ReplayedStep
from jaxserve.simulation.replay import Replay

_MAX_ROWS = 20


def show_replay(replay: Replay, console: Console) -> None:
    """Print what was recorded, how long its steps took, and whether they gave the same tokens."""
    console.print(_summary(replay))
    if replay.steps:
        console.print(_steps(replay))
    differences = [(step, difference) for step in replay.steps for difference in step.differences]
    if differences:
        console.print(_differences(differences))
    console.print(_verdict(replay), markup=False, soft_wrap=True)


def _summary(replay: Replay) -> Table:
    recording = replay.recording
    header, reason = recording.header, recording.reason.strip().splitlines() or ["none given"]
    rows = Table.grid(padding=(0, 2))
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(recording.created))
    rows.add_row("recorded", f"{header.model}, jaxserve {header.jaxserve}, jax {header.jax}, {taken}")
    rows.add_row("reason", reason[-1].replace("[", r"\["))
    rows.add_row("steps", _extent(recording))
    rows.add_row("replayed on", replay.on)
    return rows


def _extent(recording: Recording) -> str:
    steps = recording.steps
    if not steps:
        return "none"
    open_steps = sum(step.result is None for step in steps)
    extent = f"{steps[0].plan.step:,} to {steps[-1].plan.step:,}, {plural(len(recording.sequences), 'sequence')}"
    return f"{extent}; {plural(open_steps, 'step')} without a result" if open_steps else extent


def _steps(replay: Replay) -> Table:
    slowest = sorted(replay.steps, key=_slowness, reverse=True)[:_MAX_ROWS]
    title = "All steps" if len(slowest) == len(replay.steps) else f"The {_MAX_ROWS} slowest steps"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_footer=True)
    for name, total in (
        ("step", "all"),
        ("rows", f"{sum(step.plan.num_rows for step in replay.steps):,}"),
        ("tokens", f"{sum(step.plan.num_tokens for step in replay.steps):,}"),
        ("recorded ms", milliseconds(sum(step.recorded_seconds or 0.0 for step in replay.steps))),
        ("replayed ms" if replay.compared else "predicted ms", milliseconds(sum(step.seconds for step in replay.steps))),
    ):
        table.add_column(name, total, justify="right")
    for step in sorted(slowest, key=lambda step: step.plan.step):
        recorded = "none" if step.recorded_seconds is None else milliseconds(step.recorded_seconds)
        plan = step.plan
        table.add_row(f"{plan.step:,}", f"{plan.num_rows:,}", f"{plan.num_tokens:,}", recorded, milliseconds(step.seconds))
    return table


def _slowness(step: ReplayedStep) -> float:
    return step.seconds if step.recorded_seconds is None else step.recorded_seconds


def _differences(differences: list[tuple[ReplayedStep, Difference]]) -> Table:
    shown = differences[:_MAX_ROWS]
    title = "Differences" if len(shown) == len(differences) else f"The first {_MAX_ROWS} of {len(differences):,} differences"
    table = Table("step", "sequence", "position", "recorded", "replayed", title=title, title_justify="left", box=box.SIMPLE)
    for step, difference in shown:
        numbers = (difference.position, difference.recorded, difference.replayed)
        table.add_row(f"{step.plan.step:,}", difference.sequence.replace("[", r"\["), *(f"{number:,}" for number in numbers))
    return table


def _verdict(replay: Replay) -> str:
    if not replay.steps:
        return "nothing to replay: the recording holds no steps"
    last = replay.steps[-1]
    if last.error is not None:
        return f"failed: step {last.plan.step} raised {type(last.error).__name__}: {last.error}"
    if not replay.compared:
        timed = [step for step in replay.steps if step.recorded_seconds is not None]
        recorded, predicted = sum(step.recorded_seconds or 0.0 for step in timed), sum(step.seconds for step in timed)
        return f"predicted: {duration(predicted)} for {plural(len(timed), 'step')} that took {duration(recorded)}"
    compared = sum(step.num_compared for step in replay.steps)
    differing = [(step, difference) for step in replay.steps for difference in step.differences]
    if not differing:
        return f"equal: all {plural(compared, 'token')} are those recorded"
    step, first = differing[0]
    return (
        f"different: {len(differing):,} of {plural(compared, 'token')}, first in step {step.plan.step} of {first.sequence} "
        f"at position {first.position}: recorded {first.recorded}, replayed {first.replayed}"
    )
