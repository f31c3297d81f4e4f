"""Prefill attention: a row of many queries, bound by arithmetic, beside dense attention on the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax

from benchmarks.gpu.attention import Bench
from benchmarks.gpu.cases import Attention, dense, paged, prefill_cases
from benchmarks.gpu.pages import NULL_PAGES, random_array
from benchmarks.gpu.programs import Program, compile_all, facts
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.gpu.timing import time_calls
from pallas_kernels.registry import Target

TABLES = 2  # operations of a case's program that find pages of their own


def pages_of(cases: list[Attention]) -> int:
    """Of a cache that holds several times what the largest case reads."""
    return TABLES * max(case.pages for case in cases) + NULL_PAGES


def programs(sizes: Sizes, target: Target) -> Iterator[tuple[Attention, Program]]:
    """Every case of every kernel."""
    cases = prefill_cases(sizes, sizes.prefills)
    for case in cases:
        for kernel in sizes.kernels:
            yield case, paged(case, kernel, sizes, pages_of(cases), target)


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Compile everything, then time it."""
    device = jax.devices()[0]
    cases = prefill_cases(sizes, sizes.prefills)
    ours = list(programs(sizes, Target.of(device)))
    theirs = [(case, dense(case, sizes)) for case in cases]
    compiled = compile_all([program for _, program in ours + theirs], device)
    bench = Bench(sizes, pages_of(cases))
    for (case, program), future in zip(ours, compiled, strict=False):
        yield Task(program.labels, _paged(bench, case, future.result))
    for (case, program), future in zip(theirs, compiled[len(ours) :], strict=True):
        yield Task(program.labels, _dense(sizes, case, program, future.result))


def more_tasks(sizes: Sizes) -> Iterator[Task]:
    """The cases of the second command."""
    yield from tasks(replace(sizes, prefills=sizes.more_prefills, kernels=sizes.more_kernels))


def _paged(bench: Bench, case: Attention, program: Callable[[], jax.stages.Compiled]) -> Callable[[], Figure]:
    return lambda: bench.time(case, program())


def _dense(sizes: Sizes, case: Attention, program: Program, compiled: Callable[[], jax.stages.Compiled]) -> Callable[[], Figure]:
    def measure() -> Figure:
        run = compiled()
        q, k, v = (random_array(shape) for shape in program.shapes)
        timing, _ = time_calls(lambda _, q: run(q, k, v), q, sizes.pace, operations=case.operations)
        # A chunk computes the pairs that a mask would hide: its rate is by what it computes.
        pairs = case.flops(sizes.heads)
        if case.queries != case.context:
            pairs = 4 * sizes.heads.query * sizes.heads.dim * case.queries * case.context
        return timing | {"flops": pairs} | facts(run)

    return measure
