"""How an engine ended, for those who are to find out why."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class EngineDeath(msgspec.Struct, frozen=True):
    """What an engine died of. It is for operators: paths are nobody else's business.

    Attributes:
        reason: what was raised.
        unix: when, since 1970, seconds.
        dump: path, on the engine's machine, of the file that has its last steps; None if none was written.
    """

    reason: str
    unix: float
    dump: str | None = None


def latest(deaths: Iterable[EngineDeath | None]) -> EngineDeath | None:
    """The last of several."""
    return max((one for one in deaths if one is not None), key=lambda one: one.unix, default=None)
