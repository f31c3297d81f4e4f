"""What XLA's measuring of kernels costs at the start and gains in a step, and whether a later start takes its results.

`tasks` compiles a decode step without measuring, and with, into an empty directory. `taken_tasks` does so again with that
directory in a process of its own, since XLA remembers what the process has measured: a second start with the same results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import jax

from benchmarks.gpu.engine import device_rounds, lowering
from benchmarks.gpu.sizes import DTYPE, PAGE_SIZE, EngineSizes, Sizes
from benchmarks.gpu.stores import Compiled
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.plans import make_plan
from jaxserve.executor.autotune_results import autotune_options, make_results
from jaxserve.executor.gpu_options import is_gpu
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.programs import make_programs, silent
from jaxserve.models.binding import Params
from jaxserve.step.buckets import BucketGrid
from jaxserve.weights.dummy import dummy_params
from jaxserve.weights.packed import Packer

UNTUNED: Mapping[str, str] = MappingProxyType({"xla_gpu_autotune_level": "0"})


def tasks(sizes: Sizes) -> Iterator[Task]:
    """A model of a few of the layers, which has the matrices of all: not measured, and measured."""
    yield from _tuned(_few_layers(sizes), sizes.scratch)


def more_tasks(sizes: Sizes) -> Iterator[Task]:
    """The whole model."""
    yield from _tuned(sizes.engine, sizes.scratch)


def taken_tasks(sizes: Sizes) -> Iterator[Task]:
    """The model of a few layers, with what `tasks` has left."""
    engine = _few_layers(sizes)
    directory = _directory(sizes.scratch, engine)
    if directory is None or not directory.exists():
        yield Task({}, lambda: {"skipped": "there are no results of this run to take"})
        return
    recipe, params = _model(engine)
    yield _task(engine, "results taken", partial(_measure, engine, recipe, params, _options(directory), directory))


def _tuned(engine: EngineSizes, scratch: Path | None) -> Iterator[Task]:
    directory = _directory(scratch, engine)
    recipe, params = _model(engine)
    untuned = UNTUNED if is_gpu(recipe.mesh.devices.flat[0]) else {}
    yield _task(engine, "not measured", partial(_measure, engine, recipe, params, untuned, None))
    yield _task(engine, "measured", partial(_measure, engine, recipe, params, _options(directory), directory))


def _few_layers(sizes: Sizes) -> EngineSizes:
    return replace(sizes.engine, changes={**sizes.engine.changes, "num_layers": sizes.tuned_layers})


def _directory(scratch: Path | None, engine: EngineSizes) -> Path | None:
    return None if scratch is None else scratch / f"autotune-{engine.decoder().num_layers}"


def _options(directory: Path | None) -> dict[str, str]:
    make_results(directory)
    return autotune_options(jax.devices()[0], directory)


def _task(engine: EngineSizes, variant: str, measure: partial[Figure]) -> Task:
    labels = {"what": "tuning", "layers": engine.decoder().num_layers, "rows": max(engine.rows), "variant": variant}
    return Task(labels, measure)


def _model(sizes: EngineSizes) -> tuple[Lowering, Params]:
    """The decode step alone, and its weights."""
    decoder, rows = sizes.decoder(), max(sizes.rows)
    recipe = lowering(sizes, decoder, jax.devices()[:1])
    recipe.grid = BucketGrid((recipe.grid.choose(rows, rows),))
    params = dummy_params(decoder, recipe.mesh, DTYPE, packer=Packer(decoder, recipe.mesh))
    return recipe, jax.block_until_ready(params)


def _measure(sizes: EngineSizes, recipe: Lowering, params: Params, options: Mapping[str, str], directory: Path | None) -> Figure:
    """Compile, then time the step on the device."""
    before = _files(directory)
    start = time.perf_counter()
    programs = make_programs(recipe, silent, Compiled(options))
    compiled = time.perf_counter() - start
    rows = max(sizes.rows)
    plan = make_plan(((1,) * rows, (sizes.context,) * rows), PAGE_SIZE, recipe.config.vocab_size)
    step = device_rounds(LocalExecutor(recipe, programs, params), [plan], sizes.burst)
    return step | {"compile_seconds": compiled, "files_before": before, "files": _files(directory)}


def _files(directory: Path | None) -> int:
    return 0 if directory is None else sum(path.is_file() for path in directory.rglob("*"))
