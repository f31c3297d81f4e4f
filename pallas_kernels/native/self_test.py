"""Runs the native library's self-test in a child process: a library that this CPU cannot run must not end an engine.

The child is a bare interpreter without jax. It loads the library, which runs its initializers, and calls each kernel that the
dispatch chooses on this CPU, with small inputs (`native/self_test.h`). A passed test is recorded in an empty file next to the
library, named by a hash of the library, the CPU and the kernel of the operating system, so that later starts need no child.
"""

from __future__ import annotations

import hashlib
import platform
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

SECONDS = 60.0
"""Time limit of the child, which takes a tenth of a second."""
SUFFIX = ".checked"  # of the files that record passed tests
_UNLOADABLE = 3
_PROGRAM = f"""
import ctypes, sys
try:
    library = ctypes.CDLL(sys.argv[1])
except OSError:
    sys.exit({_UNLOADABLE})
library.JaxserveSelfTest.restype = ctypes.c_char_p
wrong = library.JaxserveSelfTest(sys.argv[2].encode())
sys.exit(wrong and "wrong result of " + wrong.decode())
"""
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FIELDS = frozenset(
    (
        *("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
    )
)
"""The fields of /proc/cpuinfo that tell kinds of CPUs apart, of x86-64 and of ARM."""


class SelfTestError(RuntimeError):
    """A library must not be used on this CPU; the message says which library and why."""


def failure(library: Path, instruction_set: str = "best") -> str | None:
    """Return why a library must not be used on this CPU, or None if it passes.

    A file that cannot be loaded at all passes: loading it here fails as well, and says why.
    """
    record = _record(library, instruction_set)
    if record is not None and record.exists():
        return None
    if not sys.executable or getattr(sys, "frozen", False):
        return "its self-test cannot be started: there is no Python interpreter for it"
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(library), instruction_set]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except OSError as error:
        return f"its self-test cannot be started: {error}"
    except subprocess.TimeoutExpired:
        return f"its self-test did not end within {SECONDS:.0f} seconds"
    if done.returncode == _UNLOADABLE:
        return None
    if done.returncode < 0:
        return f"its self-test ended by {_signal_name(-done.returncode)}"
    if done.returncode:
        return f"its self-test failed: {(done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[-1]}"
    if record is not None:
        with suppress(OSError):  # a folder that is not writable: the next start tests again
            record.touch()
    return None


def _record(library: Path, instruction_set: str) -> Path | None:
    """The file that records a passed test of this library on this CPU; None if the CPU cannot be identified."""
    try:
        cpu = _CPUINFO.read_text(errors="replace").split("\n\n")[0]
        content = library.read_bytes()
    except OSError:
        return None
    lines = [line for line in cpu.splitlines() if line.partition(":")[0].strip() in _CPU_FIELDS]
    key = hashlib.blake2b(content, digest_size=8)
    key.update("\n".join([*lines, platform.machine(), platform.release(), platform.version(), instruction_set]).encode())
    return library.with_name(f"{library.name}.{key.hexdigest()}{SUFFIX}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
