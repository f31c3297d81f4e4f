"""Which parameters of a quantized checkpoint may be held as they are stored, and in which scheme, by names and shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxserve.config.fields import Quantization
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.registry import weight_rules
from jaxserve.models.rules import Source, WeightRule
from jaxserve.weights.checkpoint import Block
from jaxserve.weights.formats import LoadFormat, open_checkpoint
from jaxserve.weights.quantized.layout import Layout
from jaxserve.weights.quantized.numbers import Coded
from jaxserve.weights.quantized.stored import CodedTensor
from pallas_kernels.quantization import W8A8, Float8Blocks, FourBit, Int8, Scheme
from pallas_kernels.quantization.float8_blocks import GROUP
from pallas_kernels.quantization.four_bit import MIDDLE

_NO_SIGN = np.uint8(0x7F)
"""Of FP8; a number that has all of these bits is NaN."""
Schemes = tuple[tuple[tuple[str, ...], Scheme], ...]
"""By path of the parameter."""


def stored_schemes(directory: Path, config: DecoderConfig, load_format: LoadFormat) -> Schemes:
    """Those of a model directory; none of dummy weights, nor where `quantization_config` says nothing.

    Raises CheckpointError: weights that are missing or damaged, or whose quantized tensors do not belong together.
    """
    quantization = None if load_format == "dummy" else quantization_from_hf(read_hf_config(directory))
    if quantization is None or load_format == "dummy":
        return ()
    with open_checkpoint(directory, load_format) as checkpoint:
        layout = Layout.of(checkpoint.shapes, checkpoint.dtypes, quantization, "float32")
    found = ((rule.path, _scheme(rule, layout)) for rule in weight_rules(config))
    return tuple((path, scheme) for path, scheme in found if scheme is not None)


def _scheme(rule: WeightRule, layout: Layout) -> Scheme | None:
    """The one that all of a parameter's tensors have."""
    if rule.stack is not None:
        return None
    schemes = {_source_scheme(source, layout) for source in rule.sources}
    return schemes.pop() if len(schemes) == 1 else None


def _source_scheme(source: Source, layout: Layout) -> Scheme | None:
    tensor = layout.quantized.get(source.name)
    if not isinstance(tensor, CodedTensor) or source.expert is not None or source.transposed or source.row_step != 1:
        return None
    return tensor.scheme


def held_schemes(stored: Schemes, quantization: Quantization) -> Mapping[tuple[str, ...], Scheme]:
    """Of those that a checkpoint has, what may be held where matrices are to be rounded to `quantization`.

    Without rounding, all; int8 serves w8a8, whose weights are the same. Anything else is rounded once more.
    """
    if quantization == W8A8.name:
        return {path: W8A8() for path, scheme in stored if isinstance(scheme, Int8)}
    return dict(stored) if quantization == "none" else {}


def as_scheme(coded: Coded, scheme: Scheme) -> tuple[Block, tuple[Block, ...]]:
    """Stored rows [R, inputs] as a scheme has them: values [R, inputs], and scales (and zeros), each [groups, R].

    A scale is not finite if one of its numbers is not.
    """
    scales, zeros, rows, _ = coded.factors
    parts = [scales] if zeros is None else [scales, zeros]
    by_group = [np.broadcast_to(part[rows], (len(rows), part.shape[1])).T for part in parts]
    if isinstance(scheme, Float8Blocks):
        grouped = coded.codes.reshape(len(rows), -1, GROUP) & _NO_SIGN
        return coded.codes.view(ml_dtypes.float8_e4m3fn), (np.where((grouped == _NO_SIGN).any(axis=2).T, np.nan, by_group[0]),)
    if not isinstance(scheme, FourBit):
        return coded.codes.view(np.int8), (by_group[0],)
    if scheme.zeros:
        return coded.codes, (by_group[0], by_group[1] - np.float32(MIDDLE))
    return coded.codes, (by_group[0],)
