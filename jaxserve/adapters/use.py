"""Which adapters an engine's requests use now, and what adapters take."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class AdapterUse(msgspec.Struct, frozen=True):
    """Adapters of an engine, at one moment.

    Attributes:
        slots: adapters that devices have room for.
        running, waiting: names of those of sequences that run, and that wait; sorted.
        device_bytes: that the slots take on each device.
        host_bytes: of the adapters in the host's memory.
    """

    slots: int
    running: list[str]
    waiting: list[str]
    device_bytes: int
    host_bytes: int

    @classmethod
    def merged(cls, each: Sequence[AdapterUse]) -> AdapterUse:
        """That of a fleet: slots are one engine's, the memory of the hosts is added up."""
        running, waiting = {name for one in each for name in one.running}, {name for one in each for name in one.waiting}
        host = sum(one.host_bytes for one in each)
        return cls(each[0].slots, sorted(running), sorted(waiting), each[0].device_bytes, host)
