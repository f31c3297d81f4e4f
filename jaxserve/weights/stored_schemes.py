"""Which parameters of a quantized checkpoint may be held as they are stored, and in which scheme, by names and shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxserve.config.fields import Quantization
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.registry import weight_rules
from jaxserve.models.rules import Source, WeightRule
from jaxserve.weights.bits import bits
from jaxserve.weights.checkpoint import Block
from jaxserve.weights.formats import LoadFormat, open_checkpoint
from jaxserve.weights.quantized.layout import Layout
from jaxserve.weights.quantized.mxfp4 import MXFP4Stack
from jaxserve.weights.quantized.numbers import Coded
from jaxserve.weights.quantized.stored import CodedTensor
from jaxserve.weights.stacked_experts import with_own_experts
from jaxserve.weights.tensor_error import naming_files
from pallas_kernels.quantization import FP8, W8A8, Float8Weight, FourBit, FP8Blocks, Int8, Scheme
from pallas_kernels.quantization.four_bit import MIDDLE

_NAN = 0x7F  # of E4M3, but for its sign
Schemes = tuple[tuple[tuple[str, ...], Scheme], ...]
"""By path of the parameter."""


def stored_schemes(directory: Path, config: DecoderConfig, load_format: LoadFormat) -> Schemes:
    """Those of a model directory; none of dummy weights, nor where `quantization_config` says nothing.

    Raises CheckpointError: weights that are missing or damaged, or whose quantized tensors do not belong together.
    """
    quantization = None if load_format == "dummy" else quantization_from_hf(read_hf_config(directory))
    if quantization is None or load_format == "dummy":
        return ()
    with open_checkpoint(directory, load_format) as opened, naming_files(opened):
        checkpoint = with_own_experts(opened, weight_rules(config))
        layout = Layout.of(checkpoint.shapes, checkpoint.dtypes, quantization, "float32")
    found = ((rule.path, _scheme(rule, layout)) for rule in weight_rules(config))
    return tuple((path, scheme) for path, scheme in found if scheme is not None)


def _scheme(rule: WeightRule, layout: Layout) -> Scheme | None:
    """The one that all of a parameter's tensors have."""
    schemes = {_source_scheme(source, layout) for source in rule.sources}
    return schemes.pop() if len(schemes) == 1 else None


def _source_scheme(source: Source, layout: Layout) -> Scheme | None:
    tensor = layout.quantized.get(source.name)
    if not isinstance(tensor, CodedTensor) or source.transposed != isinstance(tensor, MXFP4Stack):
        return None
    return tensor.scheme


def holdable(scheme: Scheme) -> tuple[Scheme, ...]:
    """The schemes that stored numbers may be held in: where there is no product for one, the next is asked for."""
    if not isinstance(scheme, Float8Weight):
        return (scheme,)
    return (scheme, FP8() if scheme.group is None else FP8Blocks(scheme.group))


def held_schemes(stored: Schemes, quantization: Quantization) -> Mapping[tuple[str, ...], Scheme]:
    """Of those that a checkpoint has, what may be held where matrices are to be rounded to `quantization`.

    Without rounding, all; int8 serves w8a8, whose weights are the same; fp8 with a scale an output is kept. Anything else is
    rounded once more.
    """
    if quantization == FP8.name:
        return {path: FP8() for path, scheme in stored if FP8() in holdable(scheme)}
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
    if not isinstance(scheme, FourBit):
        values = coded.codes.view(scheme.value_dtype(np.dtype(np.float32)))
        return values, (_told(values, by_group[0]) if isinstance(scheme, Float8Weight) else by_group[0],)
    if scheme.zeros:
        return coded.codes, (by_group[0], by_group[1] - np.float32(MIDDLE))
    return coded.codes, (by_group[0],)


def _told(values: Block, scales: Block) -> Block:
    """Scales [groups, R] that are not finite for those of the rows [R, inputs] of FP8 that have a NaN."""
    wrong = ((bits(values) & np.uint8(_NAN)) == _NAN).any(axis=1)
    told: Block = np.where(wrong, np.float32(np.nan), scales)
    return told
