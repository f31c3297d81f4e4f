"""Notices that Ray's processes are gone: its control service (GCS), or the raylet of this machine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import msgspec

LOOK_SECONDS = 0.5
FAILURES = 2  # looks in a row, after which Ray of this machine alone is lost: before its workers notice and end
PATIENT_FAILURES = 100  # of a cluster of several machines, whose GCS may come back; Ray itself gives up after a minute
FAREWELL_SECONDS = 5.0  # for ingresses, which watch too, to tell their clients
_CONNECT_SECONDS = 1.0

Reaches = Callable[[str], bool]
"""Whether anything listens at "host:port"."""


class RayServices(msgspec.Struct, frozen=True):
    """What a fleet cannot do without.

    Attributes:
        addresses: name of each service -> "host:port".
        failures: looks in a row that may fail.
    """

    addresses: dict[str, str]
    failures: int = FAILURES


class RayWatch:
    """Watches services by their addresses."""

    def __init__(self, services: RayServices, reaches: Reaches | None = None) -> None:
        self._services = services
        self._reaches = reaches or listens
        self._failures = dict.fromkeys(services.addresses, 0)

    def look(self) -> str | None:
        """Which service was not reached several times in a row."""
        for name, address in self._services.addresses.items():
            self._failures[name] = 0 if self._reaches(address) else self._failures[name] + 1
            if self._failures[name] >= self._services.failures:
                return f"{name} at {address}"
        return None

    def watch(self, stop: threading.Event) -> str | None:
        """Look until a service is gone. Returns which; None after `stop`."""
        while (lost := self.look()) is None:
            if stop.wait(LOOK_SECONDS):
                return None
        return lost

    async def lost(self) -> str:
        """The same in an event loop, until it is cancelled."""
        while (lost := await asyncio.to_thread(self.look)) is None:
            await asyncio.sleep(LOOK_SECONDS)
        return lost


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
