"""Linear attention with a state that decays: the gated delta rule, and Mamba-2's state space."""

from pallas_kernels.gated_linear_attention.api import gated_linear_attention
from pallas_kernels.gated_linear_attention.implementations import NAMES
from pallas_kernels.gated_linear_attention.problem import LinearOptions

__all__ = ["NAMES", "LinearOptions", "gated_linear_attention"]
