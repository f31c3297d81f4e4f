"""Which implementation of an operation each layer uses, as a setting says it: "auto", "xla" or "xla@0-3,mosaic_gpu@4-31"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from jaxserve.errors import ConfigError

AUTO = "auto"
_PART = re.compile(r"(?P<name>\w+)(@(?P<first>\d+)(-(?P<last>\d+))?)?")


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers `first` to `last`, both included, use implementation `name`; `last` None means to the end of the model."""

    name: str
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Kernels:
    """The ranges of each operation; layers in none of them use what suits the device."""

    attention: tuple[LayerRange, ...] = ()
    kv_write: tuple[LayerRange, ...] = ()
    grouped_matmul: tuple[LayerRange, ...] = ()


AUTOMATIC = Kernels()


def parse_kernels(setting: str, param: str) -> tuple[LayerRange, ...]:
    """Read a setting. Raises ConfigError, naming `param`, for what is no list of ranges and for ranges that overlap."""
    if setting == AUTO:
        return ()
    ranges = []
    for part in setting.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match["name"] == AUTO:
            raise ConfigError(
                f"{param} must be 'auto', a name, or names with layers such as 'xla@0-3,mosaic_gpu@4-31', got {setting!r}",
                param=param,
            )
        first = int(match["first"] or 0)
        last = int(match["last"]) if match["last"] else first if match["first"] else None
        if last is not None and last < first:
            raise ConfigError(f"{param}: layers {first}-{last} end before they begin", param=param)
        ranges.append(LayerRange(match["name"], first, last))
    ranges.sort(key=lambda part: part.first)
    for before, after in pairwise(ranges):
        if before.last is None or after.first <= before.last:
            raise ConfigError(f"{param}: layer {after.first} is in ranges of {before.name} and {after.name}", param=param)
    return tuple(ranges)


def check_kernels(ranges: Sequence[LayerRange], known: Sequence[str], num_layers: int, param: str) -> None:
    """Raise ConfigError, naming `param`, unless every name is one of `known` and every layer one of the model's."""
    for part in ranges:
        if part.name not in known:
            raise ConfigError(f"{param}: there is no {part.name!r}; there is: {', '.join(known)}", param=param)
        last = part.first if part.last is None else part.last
        if last >= num_layers:
            raise ConfigError(f"{param}: the model has no layer {last}, its last one is {num_layers - 1}", param=param)


def kernel_of(ranges: Sequence[LayerRange], layer: int) -> str | None:
    for part in ranges:
        if part.first <= layer and (part.last is None or layer <= part.last):
            return part.name
    return None
