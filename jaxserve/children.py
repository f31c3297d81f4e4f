"""Child processes that never outlive their parent, with a socket to it for messages.

A child is a module that is run as `__main__` by a fresh interpreter with the parent's import path. It inherits stderr, the
environment and one end of a socket pair; every message on it is four bytes of length and the payload. The parent's death is
noticed twice: the kernel kills the child (Linux), and the socket ends (everywhere).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_LENGTH = struct.Struct("<I")
PR_SET_PDEATHSIG = 1
_EXIT_ORPHANED = 3
_STDERR = 2

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

LASTED_SECONDS = 60.0  # what ran for so long did not fail at once
LONGEST_SECONDS = 30.0  # between two starts


def stop_signals() -> list[signal.Signals]:
    """The signals that shut a command down. SIGHUP is one, as a closed terminal sends it, unless it is ignored (`nohup`)."""
    return [one for one in _STOP_SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]


class Backoff:
    """When to start a child again: counts failures in a row.

    Attributes:
        seconds: to wait now: none after the first failure, then 1, 2, 4 and so on.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._failures = 0

    def failed(self, lasted: float) -> int:
        """It ended after so many seconds. Returns the failures in a row, this one too."""
        if lasted >= LASTED_SECONDS:
            self._failures = 0
        self._failures += 1
        self.seconds = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2), LONGEST_SECONDS)
        return self._failures


@dataclass(frozen=True, slots=True)
class Child:
    """A child as its parent's event loop sees it."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, payload: bytes) -> None:
        """Send a message; to a child that is gone, nothing."""
        send_frame(self.writer, payload)

    async def receive(self) -> bytes | None:
        """The next message; None once the child is gone."""
        return await receive_frame(self.reader)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def wait(self) -> int:
        """Wait for its end. Returns the exit code, negative for a signal."""
        code = await self.process.wait()
        self.writer.close()
        return code

    async def end_within(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.wait()


async def spawn(
    module: str, first: bytes, *, pass_fds: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> Child:
    """Start a module as a child process.

    Must be called in the main thread: a child dies with the thread that started it.

    Args:
        module: name of the module; it calls `adopt` first of all.
        first: the first message.
        pass_fds: further file descriptors that the child inherits, under the same numbers.
        environment: variables that it has besides ours, from before its first import.

    Raises OSError if there is no process or file descriptor to be had.
    """
    ours, theirs = socket.socketpair()
    log = _log()
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(module, theirs, environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,  # ours is for the parent alone
                stderr=log,
                pass_fds=(theirs.fileno(), *pass_fds),
                start_new_session=True,  # a terminal's Ctrl-C is for the parent, who tells its children
            )
        except BaseException:
            ours.close()
            raise
    try:
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException:  # cancelled: nobody else knows of the process
        ours.close()
        process.kill()
        await process.wait()
        raise
    child = Child(process, reader, writer)
    child.send(first)
    return child


def _log() -> int:
    """Where children log: to stderr, unless it was closed. The descriptor may then be of a file that was opened later."""
    return subprocess.DEVNULL if sys.__stderr__ is None else _STDERR


def _command(module: str, connection: socket.socket, environment: Mapping[str, str] | None) -> Sequence[str]:
    code = (
        f"import os, sys; os.environ.update({dict(environment or {})!r}); sys.path[:] = {sys.path!r}; import runpy; "
        "from jaxserve.own_packages import own_process; own_process(); "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return sys.executable, "-P", "-c", code, str(connection.fileno()), str(os.getpid())


class Connection:
    """One end of a socket pair, for threads. `send` may be called from any thread, `receive` from one at a time.

    Attributes:
        socket: for a process that reads and writes it in its event loop.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._sending = threading.Lock()

    def send(self, payload: bytes) -> None:
        """Send a message. Does nothing if the other end is gone."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> bytes | None:
        """Wait for the next message; None once the other end is gone."""
        head = self._exactly(_LENGTH.size)
        return None if head is None else self._exactly(*_LENGTH.unpack(head))

    def has_message(self, seconds: float) -> bool:
        """Wait up to that long for a message, or for the other end to be gone."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _exactly(self, count: int) -> bytes | None:
        content = bytearray()
        while len(content) < count:
            try:
                part = self.socket.recv(count - len(content))
            except ConnectionError:
                return None
            if not part:
                return None
            content += part
        return bytes(content)


class BlockingChild(Connection):
    """A child as a thread of its parent sees it: the thread that started it, which must outlive it.

    Args:
        module: as for `spawn`.
        first: the first message.
        environment: as for `spawn`.

    Raises OSError if there is no process or file descriptor to be had.
    """

    def __init__(self, module: str, first: bytes, *, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        log = _log()
        with theirs:
            try:
                self.process = subprocess.Popen(
                    _command(module, theirs, environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        super().__init__(ours)
        self.send(first)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.close()


class Parent(Connection):
    """The parent as a child sees it."""

    def exit_when_gone(self, take: Callable[[bytes], None]) -> None:
        """From now on, end this process at once when the parent is gone. Messages go to `take`, in a thread of their own."""
        threading.Thread(target=self._watch, args=(take,), name="jaxserve-parent", daemon=True).start()

    def _watch(self, take: Callable[[bytes], None]) -> None:
        while (message := self.receive()) is not None:
            take(message)
        os._exit(_EXIT_ORPHANED)


def adopt(*, outlives: bool = False) -> tuple[Parent, bytes]:
    """In a child, first of all: tie its life to its parent's. Returns the parent and its first message.

    Args:
        outlives: the child ends by itself when the socket does, after it told its clients why; else the kernel kills it.
    """
    connection, parent_id = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    if sys.platform == "linux" and not outlives:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = Parent(connection)
    first = parent.receive()
    if first is None or os.getppid() != parent_id:
        os._exit(_EXIT_ORPHANED)
    return parent, first


def send_frame(writer: asyncio.StreamWriter, payload: bytes) -> None:
    if not writer.is_closing():
        writer.write(_LENGTH.pack(len(payload)) + payload)


async def receive_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next message of a stream; None at its end."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


_SIGNAL_ADVICE = {
    "SIGILL": "this CPU lacks an instruction that a library uses: report it with the CPU's flags in /proc/cpuinfo",
    "SIGSEGV": "a crash in native code: set PYTHONFAULTHANDLER=1 to get a traceback, and report it",
    "SIGABRT": "native code gave up: its reason is on stderr, above this line",
    "SIGFPE": "an arithmetic error in native code: set PYTHONFAULTHANDLER=1 to get a traceback, and report it",
    "SIGBUS": "a memory-mapped file could not be read or written: check for space in TMPDIR, /dev/shm and the state directory",
    "SIGKILL": "probably out of memory: look for the OOM killer in `dmesg` or the container's events",
    "SIGXCPU": "over the limit on CPU time: see `ulimit -t`",
    "SIGXFSZ": "over the limit on a file's size: see `ulimit -f`",
    "SIGSYS": "a seccomp profile forbids a system call: allow it for the container",
    "SIGTERM": "another process asked it to exit",
    "SIGINT": "another process interrupted it",
}


def describe_exit(code: int) -> str:
    """Describe how a process ended, for people: its exit code, or the name of the signal and what to do about it.

    Args:
        code: as of `subprocess`: negative for a signal.
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"killed by signal {-code}"
    return f"killed by {name} ({_SIGNAL_ADVICE[name]})" if name in _SIGNAL_ADVICE else f"killed by {name}"
