"""Compiles programs ahead of serving, so that no request ever waits for a compilation."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Protocol

from jaxserve.executor.draft_specs import PREFIX, follow_name, guess_name
from jaxserve.executor.lora import PUT_ADAPTER
from jaxserve.executor.lowering import EXPERT_TOKENS, LOAD_ROW, PUT_TABLE, Lowering, choose_name, forward_name
from jaxserve.executor.program_spec import MOVES, ProgramSpec
from jaxserve.executor.routed_experts import ROUTED_EXPERTS
from jaxserve.executor.step_programs import DraftPrograms, StepPrograms
from jaxserve.jax_settings import pin_thread
from jaxserve.sampling.variants import Variant
from jaxserve.step.buckets import Bucket
from jaxserve.step.plan import MoveKind

FEWEST_THREADS, MOST_THREADS = 2, 16  # that compile at once; each takes about 2 GB
STEPS_IN_FLIGHT = 2  # one runs, and another is submitted

CompileProgress = Callable[[str, int, int], None]  # what, done, of how many


def silent(what: str, done: int, total: int) -> None:
    """A Progress that nobody is shown."""


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
    """Compiled programs: steps, readers by name, loading a slot's sampling state, putting its page table, page moves, and how
    often experts were visited.

    `draft_moves` move the draft model's part of pages. `routed_experts` reads which experts tokens visited, and
    `put_adapter` puts an adapter into its slot.

    `temporary_bytes` is what they take per device besides their arguments: the largest workspace, and the logits of two steps.
    """

    steps: StepPrograms
    readers: Mapping[str, Any]
    load_row: Any
    put_table: Any
    moves: Mapping[MoveKind, Any]
    draft_moves: Mapping[MoveKind, Any]
    expert_tokens: Any
    routed_experts: Any | None
    temporary_bytes: int
    put_adapter: Any | None = None

    def num_compiled(self) -> int:
        others = 3 + (self.routed_experts is not None) + (self.put_adapter is not None)
        return self.steps.num_compiled() + len(self.readers) + len(self.moves) + len(self.draft_moves) + others


def make_programs(lowering: Lowering, progress: CompileProgress, saved: ProgramStore | None = None) -> Programs:
    """Load or compile an engine's programs, several at a time. Needs no weights: their shapes are enough.

    Args:
        lowering: what they are made from. Its option `first_alone`: return when the grid's `first` steps and all saved ones are
            there; a thread compiles the others. Of second halves the variant that does everything and saved ones are enough.
        progress: told after every program.
        saved: where programs are had that need not be compiled.
    """
    first = lowering.grid.first() if lowering.options.first_alone else lowering.grid.buckets
    known = frozenset() if saved is None else saved.names
    now = [bucket for bucket in lowering.grid.buckets if bucket in first or forward_name(bucket) in known]
    choices = [
        (rows, drafts, variant)
        for rows, drafts in dict.fromkeys((bucket.rows, bucket.drafts) for bucket in now)
        for variant in lowering.variants
        if variant is lowering.variants[-1] or choose_name(rows, variant, drafts) in known
    ]
    chosen = [lowering.choose(rows, variant, drafts) for rows, drafts, variant in choices]
    specs = [*lowering.others(), *chosen, *map(lowering.forward, now), *lowering.drafting(now)]

    def make(spec: ProgramSpec) -> Any:
        if saved is None:
            return spec.compile()
        loaded = saved.load(spec)
        return saved.make(spec) if loaded is None else loaded

    done = _make_all([spec for spec in specs if spec.name in known], "loading programs", make, progress)
    done |= _make_all([spec for spec in specs if spec.name not in known], "compiling", make, progress)
    forwards = {bucket: done[forward_name(bucket)] for bucket in now}
    chooses = {choice: done[spec.name] for choice, spec in zip(choices, chosen, strict=True)}
    compiler = _StepCompiler(lowering, make, done)
    behind = {bucket: draft for bucket in now if (draft := compiler.draft(bucket)) is not None}
    steps = StepPrograms(lowering.grid, lowering.variants, forwards, chooses, compiler, behind)
    temporary = temporary_bytes(list(done.values()), list(forwards.values()))
    readers = {reader.name: done[reader.name] for reader in lowering.readers}
    moves, draft_moves = (
        {kind: done[prefix + name] for kind, name in MOVES.items() if prefix + name in done} for prefix in ("", PREFIX)
    )
    few = done[LOAD_ROW], done[PUT_TABLE], moves, draft_moves, done[EXPERT_TOKENS], done.get(ROUTED_EXPERTS)
    return Programs(steps, readers, *few, temporary, done.get(PUT_ADAPTER))


@dataclass(frozen=True, slots=True)
class _StepCompiler:
    lowering: Lowering
    make: Callable[[ProgramSpec], Any]
    made: dict[str, Any]  # programs that there are, by name

    def forward(self, bucket: Bucket) -> Any:
        return self.make(self.lowering.forward(bucket))

    def choose(self, rows: int, drafts: int, variant: Variant) -> Any:
        return self.make(self.lowering.choose(rows, variant, drafts))

    def draft(self, bucket: Bucket) -> DraftPrograms | None:
        for spec in self.lowering.drafting((bucket,)):
            if spec.name not in self.made:
                self.made[spec.name] = self.make(spec)
        if self.lowering.draft is None:
            return None
        return DraftPrograms(self.made[follow_name(bucket)], self.made[guess_name(bucket.rows)])


def temporary_bytes(programs: Sequence[Any], forwards: Sequence[Any]) -> int:
    """What programs take per device besides their arguments: the largest workspace, and the logits of the steps in flight."""
    memory = [program.memory_analysis() for program in forwards]
    handed_on = max(int(one.output_size_in_bytes - one.alias_size_in_bytes) for one in memory)
    return max(int(program.memory_analysis().temp_size_in_bytes) for program in programs) + STEPS_IN_FLIGHT * handed_on


def compile_threads(cores: int | None) -> int:
    """How many programs to compile at once on a machine with so many cores, None if that is not known.

    Most of a compilation is one thread; for kernels XLA has threads of its own, and measuring them waits for the GPU.
    """
    return min(max((cores or 1) // 2, FEWEST_THREADS), MOST_THREADS)


def _make_all(
    specs: list[ProgramSpec], what: str, make: Callable[[ProgramSpec], Any], progress: CompileProgress
) -> dict[str, Any]:
    done: dict[str, Any] = {}
    threads = compile_threads(os.cpu_count())
    with ThreadPoolExecutor(threads, thread_name_prefix="jaxserve-programs", initializer=pin_thread) as pool:
        futures = {pool.submit(make, spec): spec.name for spec in specs}
        try:
            for future in as_completed(futures):
                done[futures[future]] = future.result()
                progress(what, len(done), len(specs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # do not compile the rest for nobody
            raise
    return done
