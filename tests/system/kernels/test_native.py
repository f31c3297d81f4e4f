"""The native library's build and load: without a compiler, with a broken one, in folders that cannot be written to, at once."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jax.numpy as jnp
import pytest

from pallas_kernels import native
from pallas_kernels.matmul import why_plain
from pallas_kernels.native import __main__ as command
from pallas_kernels.native import build, library, load
from pallas_kernels.registry import Target

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def built(tmp_path, monkeypatch):
    """An empty folder in place of the library's, an empty home, and no compiler."""
    for module in (library, build):
        monkeypatch.setattr(module, "BUILT", tmp_path / "built")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "built"


@pytest.fixture
def cached(built):
    """The folder in the home."""
    return library.folders()[1]


def fake_compiler(path, script='for last; do :; done\necho "$@" >"$last"'):
    """A compiler that writes what it is called with stands in for one: the flags of each file are seen in its output."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_without_a_compiler_nothing_is_built(built, capsys):
    assert command.main() == 0
    assert (
        capsys.readouterr().out
        == "native kernels: not built, for there is no compiler (g++ or clang++): XLA computes everything\n"
    )
    assert not built.exists()
    assert load.missing.__wrapped__() == "the native library is not built: there is no compiler (g++ or clang++)"


def test_a_compiler_that_fails(built, capsys, caplog):
    fake_compiler(built.parent / "clang++", "echo no such instruction >&2; exit 1")
    assert command.main() == 1
    said = capsys.readouterr()
    assert said.out == "native kernels: not built, the compiler failed: XLA computes everything\n"
    assert "no such instruction" in said.err
    assert files(built) == []
    assert (load.missing.__wrapped__() or "").startswith("the native library is not built: the compiler failed: /")
    assert "no such instruction" in caplog.text


def test_a_build_replaces_the_library_of_other_sources(built, capsys):
    fake_compiler(built.parent / "g++")
    built.mkdir()
    stale, other = built / f"{version('jaxlib')}-0000.so", built / "0.0.1-0000.so"
    for path in (stale, other):
        path.touch()
    assert command.main() == 0
    path = built / library.library_name()
    assert files(built) == sorted([other.name, path.name])
    assert f"{path} built in" in capsys.readouterr().out
    assert all(f"{source.parent.name}-{source.stem}.o" in path.read_text() for source in library.sources())
    assert command.main() == 0
    assert "there already" in capsys.readouterr().out


def test_what_does_not_load_is_built_anew(built, caplog):
    """As the library of a wheel that was made on a newer system; without a compiler the loader's words are the reason."""
    path = built / library.library_name()
    built.mkdir()
    path.write_text("no library")
    assert "cannot be loaded" in (load.missing.__wrapped__() or "")
    fake_compiler(built.parent / "g++")
    assert "cannot be loaded" in (load.missing.__wrapped__() or "")  # what the stand-in writes is none either
    assert "-shared" in path.read_text()


def test_a_package_that_cannot_be_written_to_has_its_library_in_the_home(built, cached):
    fake_compiler(built.parent / "g++")
    built.touch()  # a file: no folder can be made there, not even by root
    cached.mkdir(parents=True)
    older = [cached / f"{version('jaxlib')}-{number}.so" for number in range(5)]
    for age, path in enumerate(reversed(older)):
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    path = build.provide()
    assert path == cached / library.library_name()
    assert files(cached) == sorted([path.name, *(one.name for one in older[-3:])])  # of other installations
    assert library.libraries() == [path]
    path.unlink()
    for one in (*older, cached / ".lock"):
        one.unlink(missing_ok=True)
    cached.rmdir()
    cached.touch()
    with pytest.raises(build.BuildError, match=r"no place for it: .*built.*native"):
        build.provide()


def test_processes_that_start_together_compile_once(built):
    """Each waits for the first one's library. The stand-in notes every link."""
    links = built.parent / "links"
    fake_compiler(
        built.parent / "g++", f'for last; do :; done\necho library >"$last"\ncase "$1" in -shared) echo >>{links} ;; esac'
    )
    code = (
        "import sys, pathlib; from pallas_kernels.native import build, library;"
        "library.BUILT = build.BUILT = pathlib.Path(sys.argv[1]); print(build.provide())"
    )
    command = [sys.executable, "-c", code, str(built)]
    children = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert {child.communicate()[0].strip() for child in children} == {str(built / library.library_name())}
    assert links.read_text() == "\n"


def test_files_are_compiled_for_the_instruction_set_of_their_name():
    sets = {source.stem: library.instruction_set(source) for source in library.sources()}
    assert sets["native"] is sets["native_portable"] is None
    assert library.functions().count("Matmul") == 1
    if platform.machine() == "x86_64":
        assert set(sets.values()) - {None} == set(library.INSTRUCTION_SETS)
        assert all(stem.endswith(f"_{name}") for stem, name in sets.items() if name is not None)


COMPILER = build.find_compiler()
NEEDS_COMPILER = pytest.mark.skipif(COMPILER is None, reason="NOT CHECKED: native objects need a compiler")
NEEDS_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT CHECKED: instruction sets are x86-64's")
TABLE = "struct Table { int (*twice)(int); };\nextern const Table kTable, kOther;\n"
SAFE = f"{TABLE}namespace {{ int Twice(int x) {{ return 2 * x; }} }}\nconstexpr Table kTable = {{Twice}};\n"
COPIED = f"{TABLE}const Table kTable = {{kOther.twice}};\n"
INLINE = "inline __attribute__((noinline)) int Twice(int x) { return 2 * x; }\nint Four(int x) { return Twice(Twice(x)); }\n"
TEMPLATE = """namespace std { template <class T> __attribute__((noinline)) T Twice(T x) { return 2 * x; } }
int Four(int x) { return std::Twice(std::Twice(x)); }
"""
STATIC = "inline int& Count() { static int count = 0; return count; }\nint Next() { return ++Count(); }\n"
HANDLER = "void Use(int*);\nstruct Scope { ~Scope(); };\nvoid Run() { Scope scope; int x = 0; Use(&x); }\n"


@pytest.fixture
def build_one(tmp_path, monkeypatch):
    """Build a library of one source, compiled for AVX2 unless its name says otherwise."""

    def build_source(text, name="native_avx2.cc"):
        for module in (library, build):
            monkeypatch.setattr(module, "BUILT", tmp_path / "built")
        source = tmp_path / "matmul" / name
        source.parent.mkdir()
        source.write_text(text)
        monkeypatch.setattr(build, "sources", lambda: [source])
        return build.provide()

    return build_source


@NEEDS_COMPILER
@NEEDS_X86
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (COPIED, "section .init_array"),
        (INLINE, "weak symbol _Z5Twicei"),
        (TEMPLATE, "weak symbol _ZSt5TwiceIiET_S0_"),
        (STATIC, "unique symbol _ZZ5CountvE5count"),
    ],
    ids=["copied_table", "inline_function", "std_template", "static_of_inline_function"],
)
def test_code_of_an_instruction_set_that_other_cpus_would_run_is_refused(build_one, tmp_path, text, problem):
    if COMPILER is not None and problem.startswith("unique") and not COMPILER.endswith("g++"):
        problem = problem.replace("unique", "weak")
    with pytest.raises(build.BuildError, match=r"^matmul/native_avx2.cc is compiled for avx2") as refused:
        build_one(text)
    assert problem in str(refused.value)
    assert files(tmp_path / "built") == []


@NEEDS_COMPILER
@pytest.mark.parametrize(
    ("text", "name"), [(SAFE, "native_avx2.cc"), (HANDLER, "native_avx2.cc"), (INLINE + COPIED, "native_portable.cc")]
)
def test_other_code_is_linked(build_one, text, name):
    if platform.machine() != "x86_64":
        name = "native_portable.cc"
    assert build_one(text, name).is_file()


@NEEDS_COMPILER
def test_the_objects_of_these_sources_pass():
    """A library that is there passed when it was built: its name has a digest of the sources and of the check."""
    assert build.provide().name == library.library_name()


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
