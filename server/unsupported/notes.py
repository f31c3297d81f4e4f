"""What one request asked for in vain and was answered all the same: told in a header, and in the log once a minute."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextvars import ContextVar

from jaxserve.clock import Clock
from jaxserve.errors import ConfigError
from server.unsupported.table import FIELDS

WARNING_HEADER = "x-jaxserve-warning"
IGNORED_HEADER = "x-jaxserve-ignored"
LOG_SECONDS = 60.0  # between two lines about one field

_LOG = logging.getLogger(__name__)


class Lenience:
    """Which unsupported fields are dropped, and when each was last logged. One a process."""

    def __init__(self, clock: Clock, ignored: Collection[str] = ()) -> None:
        self._clock = clock
        self._ignored = frozenset(ignored)
        self._logged: dict[str, float] = {}

    def drops(self, name: str) -> bool:
        return name in self._ignored

    def log(self, name: str, what: str) -> None:
        """Write a line about a field, unless there was one lately."""
        now = self._clock.now()
        if now - self._logged.get(name, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged[name] = now
            _LOG.warning("requests ask for %s, which %s", name, what)


class Notes:
    """What was noted of one request."""

    def __init__(self, lenience: Lenience) -> None:
        self.lenience = lenience
        self._dropped: dict[str, None] = {}  # in the order of their coming, once each
        self._warned: dict[str, None] = {}

    def dropped(self, name: str) -> None:
        """A field was dropped that would have changed the answer."""
        self._dropped[name] = None
        self.lenience.log(name, "is dropped (ignore_unsupported)")

    def warned(self, name: str) -> None:
        """A field that only flavours an answer had no effect."""
        self._warned[name] = None
        self.lenience.log(name, "is not supported by this server yet and has no effect")

    def headers(self) -> dict[str, str]:
        """What the answer is to say of it; empty for most requests."""
        found = {}
        if self._warned:
            found[WARNING_HEADER] = f"without effect, as this server does not support it yet: {', '.join(self._warned)}"
        if self._dropped:
            found[IGNORED_HEADER] = ", ".join(self._dropped)
        return found


# Those of the request that a task answers. Every surface sets it before a body is read.
NOTES: ContextVar[Notes | None] = ContextVar("jaxserve_notes", default=None)


def names_of(setting: str) -> frozenset[str]:
    """The fields that the setting ignore_unsupported names. Raises ConfigError for one that this server does not know."""
    names = frozenset(name.strip() for name in setting.split(",") if name.strip())
    unknown = min(names - FIELDS.keys(), default=None)
    if unknown is not None:
        raise ConfigError(
            f"ignore_unsupported names {unknown!r}, which is no field that this server refuses: they are in the API's /docs",
            param="ignore_unsupported",
        )
    return names
