"""Weights that a program gives an engine to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxserve.weights.live.mapping import ParamMapping


@dataclass(frozen=True, slots=True)
class GivenParams:
    """A tree of arrays, how it is read, and what version of the weights it is; see `LiveModel.check`."""

    params: Any
    mapping: ParamMapping = "auto"
    version: int | str | None = None
