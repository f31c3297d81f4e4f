"""Standard streams that are closed, broken or on a full disk: output is dropped, and the process goes on."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Buffer

_EXIT_ERROR = 2
_NAMES = ("stdin", "stdout", "stderr")  # by descriptor
_NOTE = b"jaxserve: %d bytes of this log were dropped: nobody read it\n"

PATIENCE_SECONDS = 1


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


class LogFile(DroppingFile):
    """Raw output for logs: also drops data that nobody reads, so that a process never hangs because of its log.

    A pipe, socket or terminal has PATIENCE_SECONDS to take some of a write. After that, writes drop data at once until it takes
    some again; a line then says how many bytes are missing.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._descriptor = _without_blocking(descriptor)
        self._dropped = 0

    def write(self, data: Buffer, /) -> int:
        size, patience = memoryview(data).nbytes, 0 if self._dropped else PATIENCE_SECONDS
        view = memoryview(_NOTE % self._dropped + bytes(data) if self._dropped else data).cast("B")
        try:
            written = self._write(view, patience)
        except OSError as error:
            self.lost = self.lost or error
        else:
            self._dropped = view.nbytes - written if written else self._dropped + size
        return size

    def _write(self, view: memoryview, patience: float) -> int:
        """Write until nobody reads for `patience` seconds. Returns the bytes written."""
        poll, done = select.poll(), 0
        poll.register(self._descriptor, select.POLLOUT)
        while done < len(view) and poll.poll(1000 * patience):
            try:
                done += os.write(self._descriptor, view[done : done + select.PIPE_BUF])  # as much as cannot block
            except BlockingIOError:  # another process was faster
                continue
        return done


def fill_descriptors() -> None:
    """Open /dev/null for standard streams that are closed: their descriptors would be given to the next files and sockets."""
    for descriptor in range(len(_NAMES)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest descriptor that is free, which is this one
            os.set_inheritable(descriptor, True)


def guard_streams() -> None:
    """Make every standard stream usable, whatever the process was started with. To be called before it opens files."""
    fill_descriptors()
    for descriptor, name in enumerate(_NAMES):
        stream: TextIO | None = getattr(sys, name)
        if descriptor == 0:
            sys.stdin = stream or open(descriptor, closefd=False)  # noqa: SIM115
        elif not isinstance(_raw(stream), DroppingFile):
            file = DroppingFile(descriptor, "w", closefd=False) if descriptor == 1 else LogFile(descriptor)
            setattr(sys, name, _dropping(descriptor, stream, file))


def drop_unread_output() -> None:
    """Never wait for whoever reads stdout: for servers, whose one line there must not stop them."""
    sys.stdout.flush()
    if not isinstance(_raw(sys.stdout), LogFile):
        sys.stdout = _dropping(1, sys.stdout, LogFile(1))


def after_output(code: int) -> int:
    """The exit code of a command whose output goes to stdout: `code`, unless output was lost, which is then one line on stderr.

    A reader that has left, as `head` or a closed terminal, wanted no more.
    """
    sys.stdout.flush()
    raw = _raw(sys.stdout)
    if not isinstance(raw, DroppingFile) or raw.lost is None or _reader_left(raw, raw.lost):
        return code
    sys.stderr.write(f"jaxserve: cannot write to stdout: {raw.lost.strerror}\n")
    return code or _EXIT_ERROR


def _reader_left(raw: DroppingFile, lost: OSError) -> bool:
    closed_terminal = lost.errno == errno.EIO and stat.S_ISCHR(os.fstat(raw.fileno()).st_mode)
    return lost.errno == errno.EPIPE or closed_terminal


def _raw(stream: TextIO | None) -> object:
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _dropping(descriptor: int, stream: TextIO | None, file: DroppingFile) -> TextIO:
    """A stream like Python's own that writes to a file that drops data."""
    is_error = descriptor == 2
    unbuffered = getattr(stream, "write_through", False)  # python -u
    return io.TextIOWrapper(
        file if unbuffered else io.BufferedWriter(file),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="backslashreplace" if is_error or stream is None else stream.errors,
        line_buffering=is_error or file.isatty(),
        write_through=unbuffered,
    )


def _without_blocking(descriptor: int) -> int:
    """The same pipe or terminal, opened again so that only this process's writes do not block.

    Returns the descriptor itself if it is neither, or cannot be opened again.
    """
    if not (stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor)):
        return descriptor
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # no /proc, another user's, or one whose reader is gone
        return descriptor
