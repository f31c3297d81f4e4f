"""Child processes: messages, their end, and their parent's."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jaxserve.children import LONGEST_SECONDS, Backoff, describe_exit, spawn

PATIENCE = 20.0
ECHO = "tests.support.echo_child"
ROOT = Path(__file__).resolve().parents[2]


async def test_messages_of_any_size_and_the_environment() -> None:
    child = await spawn(ECHO, b"JAXSERVE_TEST_WORD", environment={"JAXSERVE_TEST_WORD": "hi 'there'"})
    async with asyncio.timeout(PATIENCE):
        assert await child.receive() == b"hi 'there'"
        for message in (b"", b"x", bytes(range(256)) * 4096):
            child.send(message)
            assert await child.receive() == message
        child.signal(signal.SIGTERM)
        assert await child.wait() == -signal.SIGTERM
        assert await child.receive() is None
    child.send(b"to nobody")
    child.signal(signal.SIGTERM)


async def test_what_a_child_prints_is_not_on_our_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    child = await spawn(ECHO, b"PATH")
    async with asyncio.timeout(PATIENCE):
        await child.receive()
    await child.kill()
    out, err = capfd.readouterr()
    assert out == ""
    assert "printed by the child" in err


async def test_a_child_that_does_not_end_is_killed() -> None:
    child = await spawn(ECHO, b"PATH")
    async with asyncio.timeout(PATIENCE):
        await child.receive()
        os.kill(child.process.pid, signal.SIGSTOP)
        await child.end_within(0.05)
        assert await child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_ends_with_its_parent(stopped: bool) -> None:
    """Even if it runs nothing that could notice."""
    code = (
        "import asyncio\n"
        "from jaxserve.children import spawn\n"
        "async def main():\n"
        f"    child = await spawn({ECHO!r}, b'PATH')\n"
        "    await child.receive()\n"
        "    print(child.process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    if stopped:
        child.suspend()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs([child], timeout=PATIENCE)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_back_off_doubles_and_forgets() -> None:
    backoff = Backoff()
    waits = []
    for _ in range(9):
        backoff.failed(1.0)
        waits.append(backoff.seconds)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS]
    assert backoff.failed(3600.0) == 1
    assert backoff.seconds == 0.0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGILL, "killed by SIGILL (this CPU lacks an instruction"),
        (-signal.SIGSEGV, "killed by SIGSEGV (a crash in native code"),
        (-signal.SIGBUS, "killed by SIGBUS (a memory-mapped file"),
        (-signal.SIGKILL, "killed by SIGKILL (probably out of memory"),
        (-signal.SIGUSR1, "killed by SIGUSR1"),
        (-(signal.SIGRTMIN + 3), f"killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_an_end_by_a_signal_is_named(code: int, words: str) -> None:
    assert describe_exit(code).startswith(words)
