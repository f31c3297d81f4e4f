"""Arrays of zeros that take no memory before something is written to them, where the platform allows that."""

from __future__ import annotations

import ctypes
import mmap
import sys

import jax
import jax.numpy as jnp


def untouched_zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros of a shape, dtype and sharding.

    In a CPU's memory they are what a KV cache of gigabytes should be: pages of the operating system that are there only once
    something is written to them. XLA has no such allocation that it can write to in place afterwards, so the pages are handed
    back: private memory that was handed back reads as zeros again (Linux). Elsewhere these are jax.numpy's zeros.
    """
    zeros: jax.Array = jnp.zeros(shape.shape, shape.dtype, device=shape.sharding)
    if sys.platform == "linux" and all(device.platform == "cpu" for device in zeros.devices()):
        for shard in jax.block_until_ready(zeros).addressable_shards:
            _hand_back(shard.data.unsafe_buffer_pointer(), shard.data.nbytes)
    return zeros


def _hand_back(address: int, size: int) -> None:
    """Let the operating system take back the whole pages among `size` bytes of zeros."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = (address + size - first) // mmap.PAGESIZE
    if pages > 0:  # what it refuses stays as it is
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(pages * mmap.PAGESIZE), mmap.MADV_DONTNEED)
