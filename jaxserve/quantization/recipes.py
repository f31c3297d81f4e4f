"""The schemes that checkpoints are quantized by, as compressed-tensors describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from jaxserve.errors import ConfigError

SchemeName = Literal["fp8", "fp8-block", "int8", "w8a8", "w4a16", "w4a16-asym"]
GROUP_SIZES = (32, 64, 128)
"""Inputs of a group that other engines' kernels take."""
BLOCK = 128  # outputs and inputs that share a scale in FP8 by blocks
_WORD = 32  # bits


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a matrix [O, I] is rounded, and how that is written down.

    Attributes:
        name: as users write it.
        numbers: "float" for float8_e4m3fn, "int" for whole numbers.
        bits: of a number.
        strategy: what shares a scale: an output ("channel"), a group of an output's inputs, or a block.
        format: compressed-tensors' name for how the numbers are stored.
        group: inputs that share a scale; None for all.
        symmetric: whether there are no zero points.
        activations: what shares a scale of the activations, which are rounded to such numbers, too, while they are multiplied;
            None where they stay as they are.
    """

    name: SchemeName
    numbers: Literal["float", "int"]
    bits: int
    strategy: Literal["channel", "group", "block"]
    format: Literal["float-quantized", "int-quantized", "pack-quantized"]
    group: int | None = None
    symmetric: bool = True
    activations: Literal["token", "group"] | None = None

    @property
    def packed(self) -> bool:
        """Whether several numbers are in one word."""
        return self.format == "pack-quantized"

    @property
    def compensated(self) -> bool:
        """Whether errors are made up for where there is a calibration text: 8 bits lose too little for it."""
        return self.strategy == "group"

    def settings(self, ignored: tuple[str, ...]) -> dict[str, Any]:
        """The `quantization_config` of a checkpoint all of whose Linear modules but the ignored ones are rounded so."""
        weights: dict[str, Any] = self._numbers() | {"strategy": self.strategy, "dynamic": False, "symmetric": self.symmetric}
        activations: dict[str, Any] | None = None
        if self.strategy == "group":
            weights["group_size"] = self.group
        if self.strategy == "block":
            weights["block_structure"] = [BLOCK, BLOCK]
        if self.activations is not None:
            activations = self._numbers() | {"strategy": self.activations, "dynamic": True, "symmetric": True}
            if self.activations == "group":
                activations["group_size"] = BLOCK
        group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group | {"format": self.format}},
            "ignore": list(ignored),
            "kv_cache_scheme": None,
        }

    def misfit(self, matrices: tuple[tuple[int, int], ...]) -> str | None:
        """Why matrices [O, I] that are multiplied as one cannot be rounded so; None if they can."""
        inputs = self.group or (_WORD // self.bits if self.packed else 1)
        outputs = BLOCK if self.strategy == "block" else 1
        if not self.symmetric:
            outputs = _WORD // self.bits  # zero points are packed along them
        for number, (rows, columns) in enumerate(matrices):
            if columns % inputs:
                return f"{columns} inputs are no multiple of {inputs}"
            if rows % outputs and (self.strategy != "block" or number < len(matrices) - 1):  # the last block may be a part
                return f"{rows} outputs are no multiple of {outputs}"
        return None

    def _numbers(self) -> dict[str, Any]:
        return {"num_bits": self.bits, "type": self.numbers}


RECIPES: Mapping[SchemeName, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("fp8", "float", 8, "channel", "float-quantized", activations="token"),
            Recipe("fp8-block", "float", 8, "block", "float-quantized", BLOCK, activations="group"),
            Recipe("int8", "int", 8, "channel", "pack-quantized"),
            Recipe("w8a8", "int", 8, "channel", "int-quantized", activations="token"),
            Recipe("w4a16", "int", 4, "group", "pack-quantized", 128),
            Recipe("w4a16-asym", "int", 4, "group", "pack-quantized", 128, symmetric=False),
        )
    }
)


def recipe_of(name: SchemeName, group_size: int | None = None) -> Recipe:
    """A recipe by its name, with groups of another size. Raises ConfigError for a size that no kernel takes."""
    recipe = RECIPES[name]
    if group_size is None:
        return recipe
    if recipe.strategy != "group":
        raise ConfigError(f"group_size is for schemes with groups, not {name}", param="group_size")
    if group_size not in GROUP_SIZES:
        raise ConfigError(f"group_size must be {', '.join(map(str, GROUP_SIZES))}, got {group_size}", param="group_size")
    return replace(recipe, group=group_size)
