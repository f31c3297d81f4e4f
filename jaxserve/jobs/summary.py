"""What became of a job's lines, what it took and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_HOUR = 3600.0


@dataclass(slots=True)
class Counts:
    """What became of lines, and what that took.

    Attributes:
        answered: lines with a reply in the output file.
        failed: lines whose answer was an error.
        invalid: lines that are no requests, or were not asked.
        blank: lines with nothing in them.
        asked_again: times that an engine refused a line for the moment.
        prompt_tokens, cached_tokens, completion_tokens: of replies; cached ones are among the prompt's.
        wall_seconds: from the opening of the job.
        answering_seconds: from the first line.
        codes: of errors, and how often.
    """

    answered: int = 0
    failed: int = 0
    invalid: int = 0
    blank: int = 0
    asked_again: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    wall_seconds: float = 0.0
    answering_seconds: float = 0.0
    codes: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> int:
        return self.answered + self.failed + self.invalid + self.blank

    def count_usage(self, body: Mapping[str, Any]) -> None:
        usage = body.get("usage") or {}
        for prompt, completion in (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")):  # in responses
            self.prompt_tokens += usage.get(prompt, 0)
            self.completion_tokens += usage.get(completion, 0)
            self.cached_tokens += (usage.get(f"{prompt}_details") or {}).get("cached_tokens", 0)

    def copy(self) -> Counts:
        return self.plus(Counts())

    def plus(self, other: Counts) -> Counts:
        return Counts(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def as_dict(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"codes": dict(self.codes)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Counts:
        return cls(**{**given, "codes": Counter(given["codes"])})


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is.

    Attributes:
        run: since the job was opened.
        all_runs: with what earlier runs did.
    """

    lines: int
    run: Counts
    all_runs: Counts


@dataclass(frozen=True, slots=True)
class Summary:
    """The end of a run.

    Attributes:
        shard: which part of the input, as i/n.
        complete: whether every line is settled.
        runs: how often the job was begun or resumed.
        all_runs: of all of them.
    """

    model: str
    shard: str
    lines: int
    complete: bool
    runs: int
    run: Counts
    all_runs: Counts

    def as_dict(self, cost_per_hour: float | None = None) -> dict[str, Any]:
        parts = {"this_run": self.run, "all_runs": self.all_runs}
        return {
            "model": self.model,
            "shard": self.shard,
            "lines": self.lines,
            "complete": self.complete,
            "runs": self.runs,
            **{name: {**counts.as_dict(), **_rates(counts), **_cost(counts, cost_per_hour)} for name, counts in parts.items()},
        }

    def text(self, cost_per_hour: float | None = None) -> str:
        whole, run, rates = self.all_runs, self.run, _rates(self.run)
        state = "complete" if self.complete else f"{self.lines - whole.done} lines left"
        shard = "" if self.shard == "1/1" else f", shard {self.shard}"
        speed = (
            f"{rates['prompt_tokens_per_second']:,.0f} tokens/s in, {rates['completion_tokens_per_second']:,.0f} out, "
            f"{rates['lines_per_second']:,.1f} requests/s"
        )
        rows = [
            (self.model + shard, state),
            ("requests", f"{whole.answered:,} answered, {whole.failed:,} failed, {whole.invalid:,} invalid"),
            ("errors", ", ".join(f"{code} {count:,}" for code, count in whole.codes.most_common())),
            ("tokens", f"{whole.prompt_tokens:,} in ({_share(whole):.0%} cached), {whole.completion_tokens:,} out"),
            ("asked again", f"{whole.asked_again:,} times" if whole.asked_again else ""),
            ("throughput", speed),
            ("time", _duration(run.wall_seconds) + (f", all {self.runs} runs {_duration(whole.wall_seconds)}" * (self.runs > 1))),
            ("cost", "" if cost_per_hour is None else f"${_cost(whole, cost_per_hour)['cost']:,.4f} at ${cost_per_hour:g}/hour"),
        ]
        return "\n".join(f"{name + ':':<13}{text}" for name, text in rows if text)


def _rates(counts: Counts) -> dict[str, float]:
    seconds = counts.answering_seconds
    done = {
        "lines_per_second": counts.answered + counts.failed,
        "prompt_tokens_per_second": counts.prompt_tokens,
        "completion_tokens_per_second": counts.completion_tokens,
    }
    return {name: number / seconds if seconds else 0.0 for name, number in done.items()}


def _cost(counts: Counts, per_hour: float | None) -> dict[str, float]:
    """Of the time from opening to end: the machine is paid for while it loads, too."""
    return {} if per_hour is None else {"cost": counts.wall_seconds / _HOUR * per_hour}


def _share(counts: Counts) -> float:
    return counts.cached_tokens / counts.prompt_tokens if counts.prompt_tokens else 0.0


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest:.0f} s"
