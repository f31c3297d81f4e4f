"""The engine from saved programs: the bundle that the engine's section writes, loaded by another process as a server loads it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import numpy as np

from benchmarks.gpu.engine import Engine, device_step, lowering, request, started
from benchmarks.gpu.sizes import GREEDY, Sizes
from benchmarks.gpu.stores import Compiled, Loaded
from benchmarks.gpu.tasks import Figure, Task
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.executor.gpu_options import is_gpu
from jaxserve.executor.program_bundle import MANIFEST, ProgramBundle, read_manifest, save_programs

PROGRAMS, TOKENS = "programs", "tokens.json"  # in the run's scratch directory
PROMPTS, OUTPUT = 4, 16  # of the tokens that are compared


def save_tasks(engine: Engine, store: Compiled, labels: Figure, scratch: Path | None) -> Iterator[Task]:
    """Save the programs of an engine, and the tokens that they lead to; nothing where a run has no scratch directory."""
    if scratch is not None:
        missing = _missing()
        yield Task(
            labels | {"what": "save"}, (lambda: {"skipped": missing}) if missing else partial(_save, engine, store, scratch)
        )


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Start from saved programs, time a step, and compare tokens."""
    directory = None if sizes.scratch is None else sizes.scratch / PROGRAMS
    manifest = None if directory is None or not (directory / MANIFEST).exists() else read_manifest(directory)
    if sizes.scratch is None or directory is None or manifest is None:
        reason = _missing() or "the engine's section has saved no programs in this run"
        yield Task({}, lambda: {"skipped": reason})
        return
    devices = jax.devices()[:1]
    store = Loaded(ProgramBundle(directory, manifest, lowering(sizes.engine, sizes.engine.decoder(), devices)))
    engine, labels, start = started(sizes.engine, devices, store)
    yield Task(start.labels, lambda: start.measure() | {"loaded": len(store.loaded), "compiled": store.compiled})
    rows, context = max(sizes.engine.rows), sizes.engine.context
    case = {"what": "device step", "rows": rows, "context": context, "choice": GREEDY}
    yield Task(labels | case, partial(device_step, engine, (context,) * rows, {}))
    yield Task(labels | {"what": "tokens"}, partial(_compare, engine, sizes.scratch))


def _missing() -> str | None:
    """What saving needs and is not here."""
    return None if hasattr(sys.modules["msgspec"], "json") else "not installed: msgspec, which writes the manifest"


def _save(engine: Engine, store: Compiled, scratch: Path) -> Figure:
    programs = store.programs
    if not is_gpu(engine.recipe.mesh.devices.flat[0]):  # a CPU program that sorts cannot be saved once it has run
        jax.clear_caches()
        with nothing_kept():
            programs = {name: spec.compile() for name, spec in store.specs.items()}
    (scratch / TOKENS).write_text(json.dumps(greedy_tokens(engine)))
    return {"programs": len(programs), "bytes": save_programs(scratch / PROGRAMS, engine.recipe, programs)}


def _compare(engine: Engine, scratch: Path) -> Figure:
    before, now = json.loads((scratch / TOKENS).read_text()), greedy_tokens(engine)
    same = sum(one == other for one, other in zip(before, now, strict=True))
    return {"sequences": len(now), "same": same, "tokens": sum(map(len, now))}


def greedy_tokens(engine: Engine) -> list[list[int]]:
    """Of a few prompts, the same ones every time."""
    rng = np.random.default_rng(0)
    names = [f"saved {number}" for number in range(PROMPTS)]
    for name in names:
        engine.core.add([request(engine, name, rng, engine.sizes.context, OUTPUT)])
    found: dict[str, list[int]] = {name: [] for name in names}
    while engine.core.has_work:
        for update in engine.core.step():
            if update.error is not None:
                raise RuntimeError(f"{update.id} failed: {update.error}")
            if update.token is not None:
                found[update.id].append(update.token)
    return [found[name] for name in names]
