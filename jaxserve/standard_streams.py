"""Standard streams that are closed, broken or on a full disk: output is dropped, and the process goes on."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Buffer

_EXIT_ERROR = 2
_NAMES = ("stdin", "stdout", "stderr")  # by descriptor


class DroppingFile(io.FileIO):
    """Raw output that drops unwritable data.

    Attributes:
        lost: why something was dropped, the first time; None if all was written.
    """

    lost: OSError | None = None

    def write(self, data: Buffer, /) -> int:
        try:
            written = super().write(data)
        except OSError as error:
            self.lost = self.lost or error
            return memoryview(data).nbytes
        return memoryview(data).nbytes if written is None else written  # None: a pipe that does not block is full


def guard_streams() -> None:
    """Make every standard stream usable, whatever the process was started with. To be called before it opens files.

    A closed descriptor would be given to the next file or socket, which would then get what is meant for the stream.
    """
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest descriptor that is free, which is this one
            os.set_inheritable(descriptor, True)
        stream: TextIO | None = getattr(sys, name)
        if descriptor == 0:
            sys.stdin = stream or open(descriptor, closefd=False)  # noqa: SIM115
        elif not isinstance(_raw(stream), DroppingFile):
            setattr(sys, name, _dropping(descriptor, stream))


def after_output(code: int) -> int:
    """The exit code of a command whose output goes to stdout: `code`, unless output was lost, which is then one line on stderr.

    A reader that has left, as `head` does, wanted no more.
    """
    sys.stdout.flush()
    raw = _raw(sys.stdout)
    if not isinstance(raw, DroppingFile) or raw.lost is None or raw.lost.errno == errno.EPIPE:
        return code
    sys.stderr.write(f"jaxserve: cannot write to stdout: {raw.lost.strerror}\n")
    return code or _EXIT_ERROR


def _raw(stream: TextIO | None) -> object:
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _dropping(descriptor: int, stream: TextIO | None) -> TextIO:
    """A stream like Python's own that drops unwritable data."""
    is_error = descriptor == 2
    file = DroppingFile(descriptor, "w", closefd=False)
    unbuffered = getattr(stream, "write_through", False)  # python -u
    return io.TextIOWrapper(
        file if unbuffered else io.BufferedWriter(file),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="backslashreplace" if is_error or stream is None else stream.errors,
        line_buffering=is_error or file.isatty(),
        write_through=unbuffered,
    )
