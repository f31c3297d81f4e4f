"""What the kernel suites make batches of."""

from pallas_kernels.parity.batches import Batch, Heads, make_batch

__all__ = ["Batch", "Heads", "make_batch"]
