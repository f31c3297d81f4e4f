"""All-reduces over all GPUs by message size: NCCL's as the engine has them, and NCCL's in symmetric memory.

With symmetric memory NCCL may have the switch add up (NVLS), or read from the others at once, where it would pass messages on.
XLA has to be asked for it, and to keep memory apart: the engine does not, until this table says from which size on it would gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.gpu.sizes import DTYPE, ITEM_BYTES, Sizes
from benchmarks.gpu.tasks import Figure, Task
from benchmarks.gpu.timing import time_calls
from jaxserve.executor.gpu_options import compiler_options, is_gpu

WAYS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"NCCL": {}, "symmetric": {"xla_gpu_experimental_enable_nccl_symmetric_buffers": "True"}}
)
CHAIN = 8  # all-reduces of a program, each fed by the one before
MEMORY = MappingProxyType({"memory_fraction": 0.5, "collective_memory_size": 2**30})  # for jax's GPU client
AXIS = "gpus"


@dataclass(frozen=True, slots=True)
class Message:
    """An all-reduce of so many bytes on each of the devices, in one of WAYS."""

    size: int
    way: str
    devices: tuple[jax.Device, ...]

    @property
    def sharding(self) -> NamedSharding:
        """A message on each device."""
        return NamedSharding(Mesh(np.array(self.devices), AXIS), PartitionSpec(AXIS))

    def compile(self) -> jax.stages.Compiled:
        """A program of CHAIN all-reduces: [devices, numbers] -> the same shape, numbers as large as they were."""

        def local(x: jax.Array) -> jax.Array:
            y = x
            for _ in range(CHAIN):
                # What a device adds of its own keeps XLA from seeing that all have the same sum.
                y = jax.lax.psum(y, AXIS) * (0.5 / len(self.devices)) + 0.5 * x
            return y

        spec = PartitionSpec(AXIS)
        function = jax.shard_map(local, mesh=self.sharding.mesh, in_specs=spec, out_specs=spec)
        shape = jax.ShapeDtypeStruct((len(self.devices), self.size // ITEM_BYTES), DTYPE, sharding=self.sharding)
        options = {**compiler_options(self.devices[0]), **(WAYS[self.way] if is_gpu(self.devices[0]) else {})}
        return jax.jit(function).lower(shape).compile(compiler_options=options or None)


def messages(sizes: Sizes, devices: tuple[jax.Device, ...]) -> list[Message]:
    """All of NCCL's first: what the other way breaks is lost without them."""
    return [Message(size, way, devices) for way in WAYS for size in sizes.messages]


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Compile and time each; nothing on one device."""
    if sizes.platform == "gpu":  # before jax starts
        jax.config.update("jax_pjrt_client_create_options", dict(MEMORY))
    devices = jax.devices()
    if len(devices) == 1:
        yield Task({}, lambda: {"skipped": "there is one device"})
        return
    for message in messages(sizes, tuple(devices)):
        yield Task({"bytes": message.size, "way": message.way, "devices": len(devices)}, _timed(message, sizes))


def _timed(message: Message, sizes: Sizes) -> Callable[[], Figure]:
    def measure() -> Figure:
        run = message.compile()
        shape = (len(message.devices), message.size // ITEM_BYTES)
        x = jax.device_put(jnp.ones(shape, DTYPE), message.sharding)
        timing, _ = time_calls(lambda _, x: run(x), x, sizes.pace, operations=CHAIN)
        return timing

    return measure
