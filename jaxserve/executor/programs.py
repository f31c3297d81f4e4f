"""Compiles programs ahead of serving, so that no request ever waits for a compilation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Protocol

from jaxserve.executor.lowering import COPY_PAGES, EXPERT_TOKENS, LOAD_ROW, SCORE, Lowering, ProgramSpec, step_name
from jaxserve.executor.step_programs import StepPrograms

COMPILE_THREADS = 2  # XLA's own compiler threads fill the other cores
SMALL_PROGRAMS = 4  # besides the steps

Progress = Callable[[str, int, int], None]  # what, done, of how many


class ProgramStore(Protocol):
    """Where programs may be had without compiling."""

    @property
    def names(self) -> frozenset[str]:
        """Of those that are there for sure."""

    def load(self, spec: ProgramSpec) -> Any | None:
        """The program of a spec; None if it is not there."""

    def make(self, spec: ProgramSpec) -> Any:
        """Compile a program that is not there."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Compiled programs: steps, prompt scoring, loading a slot's sampling state, copying pages, and what experts were visited.

    `temporary_bytes` is the largest workspace any of them takes per device.
    """

    steps: StepPrograms
    score: Any
    load_row: Any
    copy_pages: Any
    expert_tokens: Any
    temporary_bytes: int


def make_programs(lowering: Lowering, progress: Progress, saved: ProgramStore | None = None) -> Programs:
    """Load or compile an engine's programs, several at a time. Needs no weights: their shapes are enough.

    Args:
        lowering: what they are made from. Its option `first_alone`: return when the grid's `first` steps and all saved ones are
            there; a thread compiles the others.
        progress: told after every program.
        saved: where programs are had that need not be compiled.
    """
    first = lowering.grid.first() if lowering.options.first_alone else lowering.grid.buckets
    known = frozenset() if saved is None else saved.names
    now = {step_name(bucket): bucket for bucket in lowering.grid.buckets if bucket in first or step_name(bucket) in known}
    specs = [*lowering.others(), *(lowering.step(bucket) for bucket in now.values())]

    def make(spec: ProgramSpec) -> Any:
        if saved is None:
            return spec.compile()
        loaded = saved.load(spec)
        return saved.make(spec) if loaded is None else loaded

    done = _make_all([spec for spec in specs if spec.name in known], "loading programs", make, progress)
    done |= _make_all([spec for spec in specs if spec.name not in known], "compiling", make, progress)
    temporary = max(int(program.memory_analysis().temp_size_in_bytes) for program in done.values())
    ready = {bucket: done[name] for name, bucket in now.items()}
    steps = StepPrograms(lowering.grid, ready, lambda bucket: make(lowering.step(bucket)))
    return Programs(steps, done[SCORE], done[LOAD_ROW], done[COPY_PAGES], done[EXPERT_TOKENS], temporary)


def _make_all(specs: list[ProgramSpec], what: str, make: Callable[[ProgramSpec], Any], progress: Progress) -> dict[str, Any]:
    """Programs by name."""
    done: dict[str, Any] = {}
    with ThreadPoolExecutor(COMPILE_THREADS, thread_name_prefix="jaxserve-programs") as pool:
        futures = {pool.submit(make, spec): spec.name for spec in specs}
        try:
            for future in as_completed(futures):
                done[futures[future]] = future.result()
                progress(what, len(done), len(specs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # do not compile the rest for nobody
            raise
    return done
