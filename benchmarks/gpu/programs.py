"""Programs that attention sections time: lowered from shapes, so that they also compile where there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from benchmarks.gpu.tasks import Figure
from jaxserve.executor.gpu_options import compiler_options

MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class Program:
    """A function and the shapes of its arguments.

    Attributes:
        labels: what it computes and how; part of its figures.
        function: of arrays.
        shapes: of its arguments.
        donated: positions of arguments that it may reuse.
    """

    labels: Figure
    function: Callable[..., Any]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    donated: tuple[int, ...] = ()

    def lower(self, device: jax.Device) -> jax.stages.Lowered:
        """Lower for a device, which may be a topology's."""
        place = SingleDeviceSharding(device)
        shapes = [jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place) for shape in self.shapes]
        return jax.jit(self.function, donate_argnums=self.donated).lower(*shapes)

    def compile(self, device: jax.Device) -> jax.stages.Compiled:
        """Compile for a device as the engine compiles its steps: one CUDA graph, where possible."""
        return finish(self.lower(device), device)


def finish(lowered: jax.stages.Lowered, device: jax.Device) -> jax.stages.Compiled:
    """Compile what is lowered already, with the engine's options for the device."""
    return lowered.compile(compiler_options=compiler_options(device) or None)


def compile_all(programs: Sequence[Program], device: jax.Device) -> Sequence[Future[jax.stages.Compiled]]:
    """Compile in parallel, and wait. The result of each future is the program, or raises what compiling it raised."""
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        return [pool.submit(program.compile, device) for program in programs]


def facts(program: jax.stages.Compiled) -> Figure:
    """The workspace that a compiled program takes, in bytes."""
    memory = program.memory_analysis()
    return {"temporary_bytes": None if memory is None else int(memory.temp_size_in_bytes)}
