"""Short causal convolutions of each channel over the tokens of its sequence."""

from pallas_kernels.causal_conv1d.api import causal_conv1d
from pallas_kernels.causal_conv1d.implementations import NAMES

__all__ = ["NAMES", "causal_conv1d"]
