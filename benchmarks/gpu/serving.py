"""The sections of the engine on one device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax

from benchmarks.gpu import launches, saved
from benchmarks.gpu.alternating import alternating
from benchmarks.gpu.engine import loads, on_devices, started
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.stores import Compiled
from benchmarks.gpu.tasks import Task


def tasks(sizes: Sizes) -> Iterator[Task]:
    """What decides: start, loads, first token, steps with prompts in between, launches; and programs for the next section."""
    store = Compiled()
    engine, labels, start = started(sizes.engine, jax.devices()[:1], store)
    yield start
    yield from loads(engine, labels)
    yield Task(labels | {"what": "alternating"}, partial(alternating, engine))
    yield from saved.save_tasks(engine, store, labels, sizes.scratch)
    yield launches.task(engine, labels)


def more_tasks(sizes: Sizes) -> Iterator[Task]:
    """With the rows of the second command."""
    yield from on_devices(sizes.more_engine, jax.devices()[:1])
