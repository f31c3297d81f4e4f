"""The wheel: all that an engine needs is in it, and the native library where there is one."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pallas_kernels.native import library

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("jaxserve", "pallas_kernels", "sharding", "server", "scripts", "pyproject.toml", "README.md", "LICENSE", ".gitignore")
PACKAGES = "jaxserve/packages"
BUILT = "pallas_kernels/native/built/"

pytest.importorskip("hatchling", reason="NOT CHECKED: wheels are built by hatchling, which `make install` brings")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy without a native library."""
    folder = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "built")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=ignore)
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


def build(checkout: Path, output: Path) -> tuple[str, set[str]]:
    """The wheel's name, and what is in it."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", str(output), "."], cwd=checkout, check=True)
    (wheel,) = output.iterdir()
    return wheel.name, set(zipfile.ZipFile(wheel).namelist())


def test_without_a_library_it_is_for_any_machine_and_has_the_sources(checkout: Path, tmp_path: Path) -> None:
    name, files = build(checkout, tmp_path)
    assert name.endswith("-py3-none-any.whl")
    sources = [*library.sources(), *library.PACKAGE.rglob("*.h")]
    assert {f"{PACKAGES}/{path.relative_to(ROOT).as_posix()}" for path in sources} <= files
    assert {file.partition("/")[0] for file in files if ".dist-info" not in file} == {"jaxserve", "jaxserve.pth"}
    assert {f"{PACKAGES}/server/run.py", f"{PACKAGES}/sharding/mesh.py", "jaxserve/proto/inference.proto"} <= files
    assert {"jaxserve/assets/pico/model.safetensors", "jaxserve/evaluation/tasks/_answer"} <= files
    assert not [file for file in files if file.endswith(".so") or file.startswith(("tests/", "scripts/"))]


def test_with_a_library_it_has_it_and_is_of_this_kind_of_machine(checkout: Path, tmp_path: Path) -> None:
    """A file stands in for the library: compiling one takes longer than all else here."""
    (checkout / BUILT).mkdir()
    (checkout / BUILT / library.library_name()).write_text("library")
    name, files = build(checkout, tmp_path)
    assert "-py3-none-any" not in name
    assert f"{PACKAGES}/{BUILT}{library.library_name()}" in files


def test_installed_packages_are_found_below_ours(checkout: Path, tmp_path: Path) -> None:
    name, _ = build(checkout, tmp_path / "wheel")
    home = tmp_path / "home"
    zipfile.ZipFile(tmp_path / "wheel" / name).extractall(home)
    (tmp_path / "sharding.py").write_text("")
    program = "import jaxserve.aot.target, sharding; from server.ports import bind; print(sharding.__file__)"
    code = (
        f"import sys; sys.path.insert(0, {str(home)!r}); from jaxserve.own_packages import own_process; own_process(); {program}"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(home / PACKAGES / "sharding" / "__init__.py")
