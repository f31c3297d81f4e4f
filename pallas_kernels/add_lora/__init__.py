"""What low-rank adapters add to the product of a projection: rows sorted by adapter, each with its own."""

from pallas_kernels.add_lora.api import add_lora
from pallas_kernels.add_lora.implementations import NAMES

__all__ = ["NAMES", "add_lora"]
