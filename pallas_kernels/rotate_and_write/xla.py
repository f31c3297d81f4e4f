"""rotate_and_write in XLA: on a GPU a kernel that rotates queries, and a scatter that rotates keys."""

from __future__ import annotations

import jax

from pallas_kernels.kv_write import xla as write
from pallas_kernels.rotate_and_write.rotation import Rotation, rotate


def rotate_and_write(
    kv_pages: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array | None, rotation: Rotation, slots: jax.Array, *, layer: int
) -> tuple[jax.Array, jax.Array]:
    """See api.py."""
    kv_pages, _ = write.kv_write(kv_pages, None, rotate(k, rotation), v, slots, layer=layer)
    return rotate(q, rotation), kv_pages
