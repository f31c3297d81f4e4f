"""How the numbers of a matrix are rounded, one file a scheme; how a matrix lies in memory is told in `matmul/layouts.py`.

A scheme that matrices are rounded to is registered here, and named in the flag's choices (`jaxserve.config.fields.Quantization`);
nothing else lists them. Float8Blocks is only ever read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pallas_kernels.quantization.float8_blocks import Float8Blocks
from pallas_kernels.quantization.four_bit import FourBit
from pallas_kernels.quantization.int8 import Int8
from pallas_kernels.quantization.scheme import Axes, Scheme, outputs_of
from pallas_kernels.quantization.w8a8 import W8A8

SCHEMES: Mapping[str, Scheme] = MappingProxyType({scheme.name: scheme for scheme in (Scheme(), Int8(), W8A8(), FourBit())})

__all__ = ["SCHEMES", "W8A8", "Axes", "Float8Blocks", "FourBit", "Int8", "Scheme", "outputs_of"]
