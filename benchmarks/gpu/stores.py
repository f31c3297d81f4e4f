"""Where the engine's programs come from in a measurement: all compiled and kept, or loaded from where they were saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.executor.program_bundle import ProgramBundle
from jaxserve.executor.program_spec import NO_OPTIONS, ProgramSpec


class Compiled:
    """Compiles every program.

    Args:
        options: more of XLA's.

    Attributes:
        specs, programs: what was compiled, by name.
    """

    names: frozenset[str] = frozenset()

    def __init__(self, options: Mapping[str, str] = NO_OPTIONS) -> None:
        self.specs: dict[str, ProgramSpec] = {}
        self.programs: dict[str, Any] = {}
        self._options = options

    def load(self, spec: ProgramSpec) -> Any | None:
        """There is nothing to load."""
        return None

    def make(self, spec: ProgramSpec) -> Any:
        """Compile a program."""
        program = spec.compile(self._options)
        self.specs[spec.name], self.programs[spec.name] = spec, program
        return program


class Loaded:
    """Loads saved programs, and tells which could not be.

    Attributes:
        loaded, compiled: names of programs.
    """

    def __init__(self, bundle: ProgramBundle) -> None:
        self.names = bundle.names
        self.loaded: list[str] = []
        self.compiled: list[str] = []
        self._bundle = bundle

    def load(self, spec: ProgramSpec) -> Any | None:
        """The saved program; None if there is none, or it is damaged."""
        program = self._bundle.load(spec)
        if program is not None:
            self.loaded.append(spec.name)
        return program

    def make(self, spec: ProgramSpec) -> Any:
        """Compile what could not be loaded."""
        self.compiled.append(spec.name)
        return self._bundle.make(spec)
