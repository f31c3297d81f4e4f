"""Decode attention: one query a row on a long context, bound by reading keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax

from benchmarks import machine
from benchmarks.gpu.attention import Bench
from benchmarks.gpu.cases import Attention, decode_cases, paged
from benchmarks.gpu.pages import pool_pages
from benchmarks.gpu.programs import Program, compile_all
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task
from pallas_kernels.registry import Target

CACHE_SHARE = 0.7  # of the memory


def programs(sizes: Sizes, pages: int, target: Target) -> Iterator[tuple[Attention, Program]]:
    """Every case of every kernel."""
    for case in decode_cases(sizes, sizes.decodes):
        for kernel in sizes.kernels:
            yield case, paged(case, kernel, sizes, pages, target)


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Compile everything, then time it."""
    device = jax.devices()[0]
    pages = pool_pages(decode_cases(sizes, sizes.decodes), sizes.heads, int(CACHE_SHARE * machine.memory_bytes()))
    chosen = list(programs(sizes, pages, Target.of(device)))
    compiled = compile_all([program for _, program in chosen], device)
    bench = Bench(sizes, pages)
    for (case, program), future in zip(chosen, compiled, strict=True):
        yield Task(program.labels, _timed(bench, case, future.result))


def more_tasks(sizes: Sizes) -> Iterator[Task]:
    """The cases of the second command."""
    yield from tasks(replace(sizes, decodes=sizes.more_decodes, kernels=sizes.more_kernels))


def _timed(bench: Bench, case: Attention, program: Callable[[], jax.stages.Compiled]) -> Callable[[], Figure]:
    return lambda: bench.time(case, program())
