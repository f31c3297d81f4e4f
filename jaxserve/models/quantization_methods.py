"""What `quantization_config` may say of a checkpoint's weights, a class a method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jaxserve.patterns import FilePattern


@dataclass(frozen=True, slots=True)
class BlockFP8:
    """float8_e4m3fn with a factor for every block of a matrix (DeepSeek-AI 2024).

    Attributes:
        block: rows and columns of a block; those at the edges may be smaller.
    """

    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ScaledFP8:
    """float8_e4m3fn with one factor for a matrix, or one for each of its outputs."""


@dataclass(frozen=True, slots=True)
class MXFP4:
    """The experts' matrices in the OCP Microscaling format MXFP4: 4-bit floats, 32 of which share a power of two."""


@dataclass(frozen=True, slots=True)
class AWQ:
    """4-bit integers with a scale and a zero point for a group of inputs, eight outputs in a word (Lin et al. 2024).

    Attributes:
        group_size: inputs of a group; None for all of them.
    """

    group_size: int | None


@dataclass(frozen=True, slots=True)
class GPTQ:
    """Integers with a scale and a zero point for a group of inputs, in words along the inputs (Frantar et al. 2023).

    Attributes:
        bits: of a number.
        group_size: inputs of a group; None for all of them.
        zero_offset: what is added to a stored zero point: 1 in the first format, whose writers took 1 away.
        ordered: whether inputs may belong to groups in any order (desc_act).
    """

    bits: int
    group_size: int | None
    zero_offset: Literal[0, 1]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class ModelOpt:
    """FP8 with a factor a matrix, or NVFP4: 4-bit floats; 16 share a factor in FP8, and a matrix one in float32."""


PackFormat = Literal["quantized", "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"]
"""How compressed-tensors stores numbers: one an element ("quantized", whatever their dtype), or several in a word or byte."""


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """A group of modules of compressed-tensors, whose weights are quantized alike.

    Attributes:
        targets: names of modules, regular expressions after "re:", or the class "Linear".
        format: how the numbers are stored.
        bits: of a number.
        block: outputs and inputs that share a factor; None for all of them.
        fp8_activations: whether the checkpoint asks for activations to be rounded to FP8.
        expressions: the compiled regular expressions among the targets.
    """

    targets: tuple[str, ...]
    format: PackFormat
    bits: int
    block: tuple[int | None, int | None]
    fp8_activations: bool = False
    expressions: tuple[FilePattern, ...] = field(default=(), compare=False, repr=False)

    def closeness(self, module: str) -> int:
        """How closely a target fits a module: 3 by its name, 2 by a regular expression, 1 by its class, 0 not at all."""
        if module in self.targets:
            return 3
        if any(expression.match(module) for expression in self.expressions):
            return 2
        return int("Linear" in self.targets)


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """Checkpoints of compressed-tensors, which llm-compressor writes.

    Attributes:
        groups: of modules; the closest target decides which of them a module belongs to, then their order.
    """

    groups: tuple[WeightGroup, ...]

    def group_of(self, module: str) -> WeightGroup | None:
        """The group that a module is in."""
        closeness = [group.closeness(module) for group in self.groups]
        closest = max(closeness, default=0)
        return self.groups[closeness.index(closest)] if closest else None


@dataclass(frozen=True, slots=True)
class CacheAlone:
    """Scales for a KV cache in 8 bits, and weights that are not quantized."""


Quantization = BlockFP8 | ScaledFP8 | MXFP4 | AWQ | GPTQ | ModelOpt | CompressedTensors | CacheAlone
