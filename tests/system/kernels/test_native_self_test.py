"""The test of the native library in a child process, with small libraries in place of it."""

import re
import subprocess

import pytest

from pallas_kernels.native import build, load, self_test

COMPILER = build.find_compiler()
SOURCE = 'extern "C" const char* JaxserveSelfTest(const char*) {{ {} }}\n'
RIGHT, WRONG = "return nullptr;", 'return "matmul, panels of float32";'
KILLED, HANGS = "__builtin_trap();", 'for (;;) asm volatile("");'

pytestmark = pytest.mark.skipif(COMPILER is None, reason="NOT CHECKED: the self-test of native libraries needs a compiler")


@pytest.fixture
def compiled(tmp_path):
    """Compile a library whose self-test has this body."""

    def compile_library(body):
        source, path = tmp_path / "self_test.cc", tmp_path / "kernels.so"
        source.write_text(SOURCE.format(body))
        assert COMPILER is not None
        subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
        return path

    return compile_library


@pytest.fixture
def started(monkeypatch):
    """The commands of the child processes that were started."""
    commands, run = [], subprocess.run

    def record(command, **options):
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr("subprocess.run", record)
    return commands


def records(path):
    return sorted(path.parent.glob(f"*{self_test.SUFFIX}"))


def test_a_pass_is_recorded_for_this_library_and_cpu(compiled, started, tmp_path, monkeypatch):
    path = compiled(RIGHT)
    started.clear()
    assert self_test.failure(path) is None
    assert self_test.failure(path) is None
    assert len(started) == len(records(path)) == 1
    other = tmp_path / "cpuinfo"
    other.write_text("processor : 0\nmodel name : another\nflags : fpu\n")
    monkeypatch.setattr(self_test, "_CPUINFO", other)
    assert self_test.failure(path) is None
    assert len(started) == len(records(path)) == 2
    assert self_test.failure(path, "avx2") is None
    path.write_bytes(path.read_bytes() + b"\0")
    assert self_test.failure(path) is None
    assert len(started) == len(records(path)) == 4


def test_an_unknown_cpu_is_tested_at_every_start(compiled, started, tmp_path, monkeypatch):
    monkeypatch.setattr(self_test, "_CPUINFO", tmp_path / "absent")
    path = compiled(RIGHT)
    started.clear()
    assert self_test.failure(path) is self_test.failure(path) is None
    assert len(started) == 2
    assert records(path) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (KILLED, r"its self-test ended by SIG(ILL|TRAP)"),
        (WRONG, "its self-test failed: wrong result of matmul, panels of float32"),
        (HANGS, "its self-test did not end within 0 seconds"),
    ],
    ids=["killed", "wrong", "hangs"],
)
def test_a_library_that_fails_is_not_loaded(compiled, monkeypatch, caplog, body, reason):
    path = compiled(body)
    monkeypatch.setattr(self_test, "SECONDS", 0.3 if body == HANGS else self_test.SECONDS)
    monkeypatch.setattr(load, "libraries", lambda: [path])
    monkeypatch.setattr("ctypes.CDLL", None)
    missing = load.missing.__wrapped__()
    assert missing is not None
    assert missing.startswith(f"the native library is not used: {path}: ")
    assert re.search(reason, missing)
    assert "native kernels are disabled" in caplog.text
    assert records(path) == []


def test_without_an_interpreter_it_is_not_loaded(compiled, monkeypatch):
    path = compiled(RIGHT)
    for executable in ("", "/no/python"):
        monkeypatch.setattr("sys.executable", executable)
        assert (self_test.failure(path) or "").startswith("its self-test cannot be started: ")


def test_a_file_that_is_no_library_is_left_to_the_loader(tmp_path):
    path = tmp_path / "kernels.so"
    path.write_text("no library")
    assert self_test.failure(path) is None
    assert records(path) == []
