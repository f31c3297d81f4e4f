"""Commands whose standard streams are closed, broken, full or read by nobody."""

import os
import signal
import subprocess
import sys

import pytest

from jaxserve.children import stop_signals
from jaxserve.import_path import ROOT

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


def test_a_closed_terminal_shuts_down_unless_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert stop_signals() == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert stop_signals() == [signal.SIGTERM, signal.SIGINT]
    finally:
        signal.signal(signal.SIGHUP, before)
