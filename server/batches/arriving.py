"""Room that uploads take while they arrive, kept where every front end sees it: in the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from jaxserve.errors import QuotaError

_STEPS = 64  # in which a tenant's room is taken, or there would be a transaction for every piece that arrives
_LARGEST_STEP = 4 * 2**20


class Arriving:
    """What tenants have stored and what is on its way, against what they may have.

    A front end that is killed leaves rows of uploads that nobody writes any more: they are found when their room is needed.

    Args:
        most: bytes of one tenant.
        is_written: whether somebody writes an upload's file.
    """

    def __init__(self, most: int, is_written: Callable[[str], bool]) -> None:
        self._most = most
        self._is_written = is_written

    def reserve(self, connection: sqlite3.Connection, owner: str, file_id: str, size: int) -> int:
        """Make room for an upload of at least `size` bytes. Returns how much it has. Raises QuotaError."""
        room = self._room(connection, owner, file_id, size)
        step = min(self._most // _STEPS, _LARGEST_STEP)
        reserved = min(size + step, room)
        connection.execute("INSERT OR REPLACE INTO uploads (id, owner, bytes) VALUES (?, ?, ?)", (file_id, owner, reserved))
        return reserved

    def settle(self, connection: sqlite3.Connection, owner: str, file_id: str, size: int) -> None:
        """An upload is about to become a file of so many bytes. Raises QuotaError."""
        self._room(connection, owner, file_id, size)
        self.release(connection, file_id)

    def release(self, connection: sqlite3.Connection, file_id: str) -> None:
        connection.execute("DELETE FROM uploads WHERE id = ?", (file_id,))

    def _room(self, connection: sqlite3.Connection, owner: str, file_id: str, size: int) -> int:
        """Bytes that an upload may take. Raises QuotaError if that is less than it needs."""
        stored, arriving = self._taken(connection, owner, file_id)
        if stored + arriving + size > self._most and self._forget_lost(connection, owner, file_id):
            stored, arriving = self._taken(connection, owner, file_id)
        if stored + arriving + size > self._most:
            others = f" and {arriving} are arriving" if arriving else ""
            raise QuotaError(
                f"{size} bytes do not fit: {stored} are stored{others} of the {self._most} that a tenant may have "
                "(max_tenant_mib); delete files"
            )
        return self._most - stored - arriving

    def _taken(self, connection: sqlite3.Connection, owner: str, file_id: str) -> tuple[int, int]:
        """Bytes of an owner's files, and of its uploads other than one."""
        query = (
            "SELECT (SELECT coalesce(sum(bytes), 0) FROM files WHERE owner = ?), "
            "(SELECT coalesce(sum(bytes), 0) FROM uploads WHERE owner = ? AND id != ?)"
        )
        stored, arriving = connection.execute(query, (owner, owner, file_id)).fetchone()
        return stored, arriving

    def _forget_lost(self, connection: sqlite3.Connection, owner: str, file_id: str) -> bool:
        """Forget uploads of an owner that nobody writes any more; whether there were any."""
        found = connection.execute("SELECT id FROM uploads WHERE owner = ? AND id != ?", (owner, file_id)).fetchall()
        lost = [row["id"] for row in found if not self._is_written(row["id"])]
        for one in lost:
            self.release(connection, one)
        return bool(lost)
