"""Where JSON ends."""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class ValueScanner:
    """Finds where a JSON object, list or string ends, which arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._escaped = False
        self.in_string = False
        self.is_done = False

    def take(self, text: str, at: int = 0) -> int:
        """Read a piece from an index on; returns the index where the value ends, or the length of the piece."""
        at += int(self._escaped)
        self._escaped = False
        while found := (_IN_STRING if self.in_string else _STRUCTURE).search(text, at):
            at = found.end()
            match found[0]:
                case '"':
                    self.in_string = not self.in_string
                    if self._depth == 0 and not self.in_string:
                        self.is_done = True
                        return at
                case "\\":
                    self._escaped = at == len(text)
                    at += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        self.is_done = True
                        return at
        return len(text)
