"""What a decode step launches, from the lists that XLA writes when it compiles on this GPU."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.gpu.engine import Engine
from benchmarks.gpu.sizes import GREEDY
from benchmarks.gpu.tasks import Figure, Task
from jaxserve.aot.thunks import Launches, read_launches
from jaxserve.executor.gpu_options import is_gpu
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.program_spec import ProgramSpec


def task(engine: Engine, labels: Figure) -> Task:
    """Count a greedy step's; CPU programs launch nothing."""
    rows = max(engine.sizes.rows)
    case = labels | {"what": "launches", "rows": rows, "choice": GREEDY}
    if not is_gpu(engine.recipe.mesh.devices.flat[0]):
        return Task(case, lambda: {"skipped": "CPU programs launch nothing"})
    return Task(case, partial(count, engine.recipe, rows))


def count(recipe: Lowering, rows: int) -> Figure:
    """Both halves of a step of `rows` that decode, compiled once more."""
    bucket = recipe.grid.choose(rows, rows)
    forward, choose = _launches(recipe.forward(bucket)), _launches(recipe.choose(bucket.rows, recipe.variants[0]))
    return asdict(forward + choose)


def _launches(spec: ProgramSpec) -> Launches:
    with tempfile.TemporaryDirectory() as directory:
        spec.compile({"xla_dump_to": directory})
        return read_launches(Path(directory))
