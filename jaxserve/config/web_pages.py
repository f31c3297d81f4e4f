"""Which web pages may drive a server: the names it is known by, and the origins it trusts."""

from __future__ import annotations

import re

from jaxserve.errors import ConfigError

ANY = "*"
_HOST = re.compile(r"\*|[a-z0-9._-]+|\[[0-9a-f:.]+\]", re.IGNORECASE)
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\s]+", re.IGNORECASE)


def parse_hosts(text: str) -> frozenset[str]:
    """Names, with commas between them, or "*" for any. Raises ConfigError for what is none."""
    return _parse(text, _HOST, "allowed_hosts", "names without scheme and port, such as llm.example.com")


def parse_origins(text: str) -> frozenset[str]:
    """Origins, with commas between them, or "*" for any. Raises ConfigError for what is none."""
    return _parse(text, _ORIGIN, "allowed_origins", "origins such as https://chat.example.com, without a path")


def _parse(text: str, pattern: re.Pattern[str], name: str, what: str) -> frozenset[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not pattern.fullmatch(part):
            raise ConfigError(f"{name} must be {what}, or *, with commas between them, got {part!r}", param=name)
    return frozenset(part.lower() for part in parts)
