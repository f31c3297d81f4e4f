"""The engine's part on several devices of one machine, the largest power of two of them."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from benchmarks.gpu.engine import on_devices
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Task


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Nothing on one device."""
    devices = jax.devices()
    if len(devices) == 1:
        yield Task({}, lambda: {"skipped": "there is one device"})
        return
    heads = sizes.engine.decoder().num_kv_heads
    count = min(1 << (len(devices).bit_length() - 1), heads)
    yield from on_devices(sizes.engine, devices[:count])
