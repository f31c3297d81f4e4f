"""What of an answer its reader has got: the same answer from its start is compared with it and passed over."""

from __future__ import annotations

import hashlib


class AnotherAnswerError(Exception):
    """What came is not the answer that was begun."""


class Delivered:
    """Bytes of one answer. Holds their number and a digest, not the bytes.

    Attributes:
        count: how many were delivered.
    """

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.sha256()
        self._passed = 0  # of those that come again
        self._again: hashlib._Hash | None = None

    def restart(self) -> None:
        """The answer comes again, from its start."""
        self._passed = 0
        self._again = hashlib.sha256() if self.count else None

    def take(self, piece: bytes) -> bytes:
        """What of the piece is new. Raises AnotherAnswerError as soon as all that was delivered has come and is not the same."""
        if self._again is not None:
            old, piece = piece[: self.count - self._passed], piece[self.count - self._passed :]
            self._again.update(old)
            self._passed += len(old)
            if self._passed < self.count:
                return b""
            if self._again.digest() != self._digest.digest():
                raise AnotherAnswerError(f"the first {self.count} bytes are not those that were delivered")
            self._again = None
        self._digest.update(piece)
        self.count += len(piece)
        return piece

    def end(self) -> None:
        """The answer is at its end. Raises AnotherAnswerError if that is before what was delivered."""
        if self._again is not None:
            raise AnotherAnswerError(f"it ends after {self._passed} bytes, of which {self.count} were delivered")
