"""How the numbers of a matrix are rounded, one file a scheme; how a matrix lies in memory is told in `matmul/layouts.py`.

A scheme is registered here, and named in the flag's choices (`jaxserve.config.fields.Quantization`) if matrices are rounded to
it when they are loaded; nothing else lists them. FP8Blocks is only ever read as it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pallas_kernels.quantization.float8 import Float8Weight
from pallas_kernels.quantization.four_bit import FourBit
from pallas_kernels.quantization.fp8 import FP8
from pallas_kernels.quantization.fp8_blocks import FP8Blocks
from pallas_kernels.quantization.int8 import Int8
from pallas_kernels.quantization.scheme import Axes, Scheme, outputs_of
from pallas_kernels.quantization.w8a8 import W8A8

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {scheme.name: scheme for scheme in (Scheme(), Int8(), W8A8(), FourBit(), FP8(), Float8Weight())}
)

__all__ = ["FP8", "SCHEMES", "W8A8", "Axes", "FP8Blocks", "Float8Weight", "FourBit", "Int8", "Scheme", "outputs_of"]
