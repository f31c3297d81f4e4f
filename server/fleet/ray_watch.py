"""Notices that Ray's processes are gone: its control service (GCS), or the raylet of this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

LOOK_SECONDS = 1.0
FAILURES = 3  # looks in a row
_CONNECT_SECONDS = 1.0

Reaches = Callable[[str], bool]
"""Whether anything listens at "host:port"."""


class RayWatch:
    """Watches services by their addresses.

    Args:
        services: name of each -> "host:port".
    """

    def __init__(self, services: Mapping[str, str], reaches: Reaches | None = None) -> None:
        self._services = services
        self._reaches = reaches or listens
        self._failures = dict.fromkeys(services, 0)

    def look(self) -> str | None:
        """Which service was not reached several times in a row."""
        for name, address in self._services.items():
            self._failures[name] = 0 if self._reaches(address) else self._failures[name] + 1
            if self._failures[name] >= FAILURES:
                return f"{name} at {address}"
        return None

    def watch(self) -> str:
        """Look until a service is gone. Returns which."""
        while (lost := self.look()) is None:
            time.sleep(LOOK_SECONDS)
        return lost


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
