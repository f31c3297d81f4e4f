"""The place in a JSON schema at which llguidance fails, which its errors do not tell."""

from __future__ import annotations

import json
import time
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from jaxserve.grammar.tree import Path, Schema, children, pointed_at

_SECONDS = 1.0
_LARGEST = 65_536  # bytes of a schema that is compiled again and again
_UNSATISFIABLE = "Unsatisfiable schema"


class Locator:
    """Compiles parts of a schema to find the smallest that fails as the whole does."""

    def __init__(self, schema: Schema, limits: LLParserLimits) -> None:
        self._schema = {name: value for name, value in schema.items() if name != "x-guidance"}
        self._limits = limits
        self._shared = {name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema}
        self._deadline = time.monotonic() + _SECONDS

    def fault(self) -> tuple[Path, str]:
        """The keyword, or else the schema, at fault, and what is wrong with it; empty where it cannot be told."""
        if len(json.dumps(self._schema)) > _LARGEST:
            return (), ""
        path: Path = ()
        here = self._schema
        reason = self._reason(here)
        while reason and time.monotonic() < self._deadline:
            deeper = self._deeper(path, here, reason)
            if deeper is None:
                return self._keyword(path, here), reason
            path, here, reason = deeper
        return path, reason

    def _deeper(self, path: Path, schema: Schema, reason: str) -> tuple[Path, Schema, str] | None:
        inner = [((*path, *steps), one) for steps, one in children(schema)]
        target = pointed_at(self._schema, schema.get("$ref"))
        for place, one in [*inner, *([] if target is None else [target])]:
            if isinstance(one, dict) and one is not schema and time.monotonic() < self._deadline:
                found = self._reason(one)
                if found == reason or (found.startswith(_UNSATISFIABLE) and reason.startswith(_UNSATISFIABLE)):
                    return place, one, found
        return None

    def _keyword(self, path: Path, schema: Schema) -> Path:
        for name in schema:
            rest = {key: value for key, value in schema.items() if key != name}
            if name not in self._shared and name != "type" and not self._reason(rest):
                return (*path, name)
        return path

    def _reason(self, schema: Any) -> str:
        """Why it cannot be compiled; empty if it can."""
        source = json.dumps({"grammars": [{"json_schema": {**self._shared, **schema}}]})
        return first_line(LLMatcher.validate_grammar(source, limits=self._limits))


def first_line(reason: str) -> str:
    """An error of llguidance's without what follows for developers; that of a regex with what it says at its end."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if not lines:
        return ""
    said = [line for line in lines if line.startswith("error: ")]
    return f"regex parse {said[0]}" if said else lines[0]
