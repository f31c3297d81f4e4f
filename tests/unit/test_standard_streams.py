"""Commands whose standard streams are closed, broken, full or read by nobody."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve import standard_streams
from jaxserve.children import stop_signals
from jaxserve.import_path import ROOT
from jaxserve.standard_streams import LogFile

PROGRAM = """
import os, socket, sys
from jaxserve.standard_streams import after_output, guard_streams
guard_streams()
assert socket.socket().fileno() > 2
sys.stdin.read()
print("output", flush=True)
print("diagnostics", file=sys.stderr, flush=True)
code = after_output(0)
sys.exit(code)
"""

PATHS = os.environ | {"PYTHONPATH": ROOT}


def run(redirect: str, *flags: str) -> subprocess.CompletedProcess[str]:
    shell = ["bash", "-c", f'"$@" {redirect}', "x", sys.executable, *flags, "-c", PROGRAM]
    return subprocess.run(shell, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", "| true; exit ${PIPESTATUS[0]}"])
@pytest.mark.parametrize("flags", [(), ("-u",)])
def test_closed_or_broken_streams_change_nothing(redirect: str, flags: tuple[str, ...]) -> None:
    done = run(redirect, *flags)
    assert done.returncode == 0
    assert done.stderr == ("" if "2>" in redirect else "diagnostics\n")
    assert done.stdout == ("" if ">&-" in redirect.split("2>", maxsplit=1)[0] or "|" in redirect else "output\n")


def test_lost_output_is_one_line_and_an_exit_code() -> None:
    done = run(">/dev/full")
    assert done.returncode == 2
    assert done.stderr == "diagnostics\njaxserve: cannot write to stdout: No space left on device\n"


def test_a_closed_terminal_changes_nothing() -> None:
    controller, terminal = pty.openpty()
    os.close(controller)
    command = [sys.executable, "-c", PROGRAM]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, check=False).returncode == 0
    os.close(terminal)


@pytest.fixture
def small_pipe(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The ends of a blocking pipe of one page, and no patience with its reader."""
    monkeypatch.setattr(standard_streams, "PATIENCE_SECONDS", 0)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    return reader, writer


def test_unread_log_is_dropped_and_counted(small_pipe: tuple[int, int]) -> None:
    reader, writer = small_pipe
    file = LogFile(writer)
    for number in range(3):
        assert file.write(bytes([65 + number]) * 4000) == 4000
    assert os.read(reader, 8192) == b"A" * 4000
    file.write(b"next\n")
    assert os.read(reader, 8192) == b"jaxserve: 8000 bytes of this log were dropped: nobody read it\nnext\n"
    file.write(b"as before\n")
    assert os.read(reader, 8192) == b"as before\n"
    assert file.lost is None
    assert os.get_blocking(writer), "the pipe of other processes stays as it is"


def test_unread_terminal_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_streams, "PATIENCE_SECONDS", 0)
    _, terminal = pty.openpty()
    file = LogFile(terminal)
    for _ in range(100):
        file.write(b"x" * 4000)


def test_stdout_of_servers_is_never_waited_for(small_pipe: tuple[int, int]) -> None:
    _, writer = small_pipe
    program = (
        "from jaxserve import standard_streams; standard_streams.PATIENCE_SECONDS = 0; standard_streams.guard_streams(); "
        "standard_streams.drop_unread_output(); print('x' * 9000, flush=True)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=writer, timeout=60, check=False).returncode == 0


def test_children_of_a_program_without_stderr_log_nowhere(tmp_path: Path) -> None:
    """A file of the program has the descriptor of stderr."""
    program = """
import sys
mine = open("mine", "w")
assert mine.fileno() == 2
from jaxserve.children import BlockingChild
child = BlockingChild("tests.support.logging_child", b"")
assert child.receive() == b"done"
child.kill()
"""
    done = subprocess.run(["bash", "-c", '"$@" 2>&-', "x", sys.executable, "-c", program], cwd=tmp_path, check=False, env=PATHS)
    assert done.returncode == 0
    assert (tmp_path / "mine").read_text() == ""


def test_a_closed_terminal_shuts_down_unless_ignored() -> None:
    assert signal.SIGHUP in stop_signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == [signal.SIGTERM, signal.SIGINT]
    finally:
        signal.signal(signal.SIGHUP, before)
