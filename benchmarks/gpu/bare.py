"""What a machine with common packages alone is given instead of msgspec, of which the engine's own classes need fields only."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any


class Struct:
    """A class with fields, as msgspec.Struct makes them; nothing is sent anywhere."""

    def __init_subclass__(cls, **settings: Any) -> None:
        """Make the fields."""
        super().__init_subclass__()
        dataclass(cls)


def do_without_msgspec() -> None:
    """Put the stand-in where imports find it, unless msgspec is there."""
    try:
        import_module("msgspec")
    except ModuleNotFoundError:
        stand_in = ModuleType("msgspec")
        stand_in.Struct = Struct  # type: ignore[attr-defined]
        sys.modules["msgspec"] = stand_in
