"""Foreign modules named like our packages hide nothing, in processes of ours and in a user's."""

import builtins
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.import_path import ROOT, is_command, without_current_directory
from jaxserve.own_packages import OwnPackages, RedirectedImport, foreign_names

FOREIGN = {"server.py": "", "sharding.py": "mine = 1", "pallas_kernels/__init__.py": ""}


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A user's folder with modules of our packages' names."""
    for name, text in FOREIGN.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_command_ignores_names_of_current_directory(beside: Path) -> None:
    done = run(beside, "-m", "jaxserve.keys", "--help")
    assert done.returncode == 0, done.stderr
    done = run(beside, "-m", "jaxserve.serve", "--version")
    assert done.returncode == 0, done.stderr


def test_command_ignores_standard_names_of_current_directory(tmp_path: Path) -> None:
    """Those that an interpreter has not loaded when it begins to run a command."""
    for name in ("csv", "email", "json", "logging", "random", "re", "tempfile", "textwrap", "typing", "grpc", "numpy", "rich"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current directory was imported')")
    done = run(tmp_path, "-m", "jaxserve", "serve", "--version")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("before", [True, False])
def test_script_and_our_modules_each_get_their_own(beside: Path, before: bool) -> None:
    imports = ["import server, sharding", "import jaxserve.executor.identity as ours"]
    lines = [*(imports if before else reversed(imports)), "from sharding import mine", "import pallas_kernels, sys"]
    shown = "print(server.__file__, pallas_kernels.__file__, sys.modules[ours.Matrix.__module__].__file__, sep='\\n')"
    (beside / "program.py").write_text("\n".join([*lines, shown]))
    done = run(beside, "program.py")
    assert done.returncode == 0, done.stderr
    server, kernels, matrix = done.stdout.splitlines()
    assert server == str(beside / "server.py")
    assert kernels == str(beside / "pallas_kernels" / "__init__.py")
    assert Path(matrix).is_relative_to(Path(ROOT) / "pallas_kernels" / "matmul")


def test_nothing_is_redirected_without_foreign_modules() -> None:
    assert foreign_names() == []
    assert not isinstance(builtins.__import__, RedirectedImport)


def test_finder_finds_ours_only_for_us() -> None:
    assert OwnPackages().find_spec("server") is None
    spec = OwnPackages(everywhere=True).find_spec("server")
    assert spec is not None
    assert spec.origin == str(Path(ROOT) / "server" / "__init__.py")
    assert OwnPackages(everywhere=True).find_spec("server.run") is None
    assert OwnPackages(everywhere=True).find_spec("numpy") is None


@pytest.mark.parametrize(
    ("orig", "expected"),
    [
        (["python", "-m", "jaxserve.serve", "-m", "x"], True),
        (["python", "-mjaxserve.serve", "a", "b"], True),
        (["python", "-X", "dev", "-Imjaxserve", "a", "b"], True),
        (["python", "-m", "trainer", "jaxserve.serve", "b"], False),
        (["python", "-m", "jaxserver.serve", "a", "b"], False),
    ],
)
def test_command_is_recognized(orig: list[str], expected: bool) -> None:
    assert is_command(["-m", "a", "b"], orig) is expected
    assert not is_command(["program.py", "a", "b"], orig)


def test_current_directory_leaves_the_path_unless_it_is_our_home() -> None:
    assert without_current_directory(["/user", "/lib"], "/user") == ["/lib"]
    assert without_current_directory(["", "/lib"], "/user") == ["/lib"]
    assert without_current_directory(["/bin", "/user"], "/user") == ["/bin", "/user"]
    assert without_current_directory([ROOT, "/lib"], ROOT) == [ROOT, "/lib"]
    assert without_current_directory([], "/user") == []
