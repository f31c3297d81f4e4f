"""The native library's build and load: what happens without a compiler, with a broken one, and with a file that is no library."""

import jax.numpy as jnp
import pytest

from pallas_kernels import native
from pallas_kernels.matmul import why_plain
from pallas_kernels.native import __main__ as door
from pallas_kernels.native import build, library, load
from pallas_kernels.registry import Target


@pytest.fixture
def built(tmp_path, monkeypatch):
    """An empty folder in place of the library's, and no compiler."""
    monkeypatch.setattr(library, "BUILT", tmp_path / "built")
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "built"


def fake_compiler(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_compiler_nothing_is_built(built, capsys):
    assert door.main() == 0
    assert (
        capsys.readouterr().out
        == "native kernels: not built, for there is no compiler (g++ or clang++): XLA computes everything\n"
    )
    assert not built.exists()
    assert load.missing.__wrapped__() == "the native library is not built (python -m pallas_kernels.native builds it)"


def test_a_compiler_that_fails(built, capsys):
    fake_compiler(built.parent / "clang++", "echo no such instruction >&2; exit 1")
    assert door.main() == 1
    said = capsys.readouterr()
    assert said.out == "native kernels: not built, the compiler failed: XLA computes everything\n"
    assert "no such instruction" in said.err
    assert list(built.iterdir()) == []


def test_a_build_replaces_the_library_of_other_sources(built, capsys):
    """A compiler that writes what it is called with stands in for one: the flags of each file are seen in its output."""
    fake_compiler(built.parent / "g++", 'for last; do :; done\necho "$@" >"$last"')
    built.mkdir()
    stale, other = built / f"{library.version('jaxlib')}-0000.so", built / "0.0.1-0000.so"
    for path in (stale, other):
        path.touch()
    assert door.main() == 0
    assert sorted(built.iterdir()) == sorted([other, library.library_path()])
    assert f"{library.library_path().name} built with" in capsys.readouterr().out
    linked = library.library_path().read_text()
    assert all(f"{source.parent.name}-{source.stem}.o" in linked for source in library.sources())
    assert door.main() == 0
    assert "there already" in capsys.readouterr().out
    assert "cannot be loaded" in load.missing.__wrapped__()


def test_files_are_compiled_for_the_instruction_set_of_their_name():
    sets = {source.stem: library.instruction_set(source) for source in library.sources()}
    assert sets["native"] is sets["native_portable"] is None
    assert library.functions().count("Matmul") == 1
    if library.platform.machine() == "x86_64":
        assert [sets[f"native_{name}"] for name in library.INSTRUCTION_SETS] == list(library.INSTRUCTION_SETS)


def test_a_name_is_of_one_library():
    if (reason := native.missing()) is None:
        assert native.target_name("Matmul") == f"jaxserve_Matmul_{native.digest()}"
    else:
        with pytest.raises(RuntimeError, match="native library"):
            native.target_name("Matmul")
        assert reason == native.runs_on(Target("cpu"))
    assert native.runs_on(Target("gpu", (9, 0))) == "it needs a CPU, not gpu of compute capability 9.0"


@pytest.mark.parametrize(
    ("dtype", "platform", "reason"),
    [
        ("bfloat16", "cpu", None),
        ("float32", "cpu", None),
        ("float16", "cpu", "rows and matrix must be bfloat16 or float32, not float16"),
        ("bfloat16", "gpu", "it needs a CPU, not gpu"),
    ],
)
def test_what_is_packed(monkeypatch, dtype, platform, reason):
    monkeypatch.setattr(load, "missing", lambda: None)
    assert why_plain(jnp.dtype(dtype), Target(platform)) == reason
