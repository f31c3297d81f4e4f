"""Which parameters of a quantized checkpoint may be held as they are stored, and in which scheme, by names and shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxserve.config.fields import Quantization
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.quantization_methods import CompressedTensors, ModelOpt, ScaledFP8
from jaxserve.models.quantization_methods import Quantization as CheckpointQuantization
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
ParameterPath = tuple[str, ...]
Schemes = tuple[tuple[ParameterPath, tuple[Scheme, ...]], ...]
"""By path of a parameter: what it may be held in. Where there is no product for one scheme, the next is asked for."""


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
    found = ((rule.path, _schemes(rule, layout, quantization)) for rule in weight_rules(config))
    return tuple((path, schemes) for path, schemes in found if schemes)


def _schemes(rule: WeightRule, layout: Layout, quantization: CheckpointQuantization) -> tuple[Scheme, ...]:
    """The schemes that every tensor of a parameter may be held in."""
    each = [_source_schemes(source, layout, quantization) for source in rule.sources]
    return tuple(scheme for scheme in (each[0] if each else ()) if all(scheme in schemes for schemes in each))


def _source_schemes(source: Source, layout: Layout, quantization: CheckpointQuantization) -> tuple[Scheme, ...]:
    tensor = layout.quantized.get(source.name)
    if not isinstance(tensor, CodedTensor) or source.transposed != isinstance(tensor, MXFP4Stack) or tensor.scheme is None:
        return ()
    scheme = tensor.scheme
    if not isinstance(scheme, Float8Weight):
        return (scheme,)
    if scheme.group is not None:
        return (scheme, FP8Blocks(scheme.group))
    return (scheme, FP8()) if _takes_fp8_activations(quantization, source.name) else (scheme,)


def _takes_fp8_activations(quantization: CheckpointQuantization, name: str) -> bool:
    """Whether FP8, which rounds activations, serves a tensor as its checkpoint means it."""
    if isinstance(quantization, CompressedTensors):
        group = quantization.group_of(name.removesuffix(".weight"))
        return group is not None and group.fp8_activations
    return isinstance(quantization, ScaledFP8 | ModelOpt)


def held_schemes(stored: Schemes, quantization: Quantization) -> Mapping[ParameterPath, tuple[Scheme, ...]]:
    """Of those that a checkpoint has, what may be held where matrices are to be rounded to `quantization`.

    Without rounding, all; int8 serves w8a8, whose weights are the same; fp8 with a scale an output is kept. Anything else is
    rounded once more.
    """
    if quantization == FP8.name:
        return {path: (FP8(),) for path, (scheme, *_) in stored if scheme == Float8Weight()}
    if quantization == W8A8.name:
        return {path: (W8A8(),) for path, (scheme, *_) in stored if isinstance(scheme, Int8)}
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
