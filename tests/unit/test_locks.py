"""The locks: they hold all that is installed, by release and hash, and nothing of the machine that they were made on."""

import re
import sys
import tomllib
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKS = sorted(REQUIREMENTS.glob("lock-*.txt"))
HASHED = [*LOCKS, *REQUIREMENTS.glob("image-*.txt"), REQUIREMENTS / "build.txt"]
BY_NAME: dict[str, Any] = {"ids": lambda path: path.stem}


def environment(python: str) -> dict[str, str]:
    return {
        **cast(dict[str, str], default_environment()),
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
    }


def applying(requirements: list[str], python: str) -> list[Requirement]:
    found = map(Requirement, requirements)
    return [item for item in found if item.marker is None or item.marker.evaluate(environment(python))]


def lines(lock: Path) -> list[str]:
    """The requirements, each with its hashes on one line."""
    text = "\n".join(line for line in lock.read_text().splitlines() if not line.startswith("#"))
    return text.replace("\\\n", "").splitlines()


def pins(lock: Path) -> dict[str, str]:
    """Release by name, on Linux and the Python that the lock is for; images and what builds are for 3.12."""
    found = re.search(r"-(3\.\d+)$", lock.stem)
    items = applying([line.partition(" --hash")[0] for line in lines(lock)], found[1] if found else "3.12")
    return {canonicalize_name(item.name): str(item.specifier).removeprefix("==") for item in items}


def named(requirements: list[str], python: str) -> set[str]:
    return {canonicalize_name(item.name) for item in applying(requirements, python)}


@pytest.mark.parametrize("lock", LOCKS, **BY_NAME)
def test_a_lock_pins_every_dependency(lock: Path) -> None:
    assert named(PROJECT["dependencies"] + EXTRAS["dev"], lock.stem.removeprefix("lock-")) <= pins(lock).keys()


@pytest.mark.parametrize("lock", HASHED, **BY_NAME)
def test_every_line_is_a_release_with_hashes_and_names_no_place(lock: Path) -> None:
    assert len(lines(lock)) >= 8
    for line in lines(lock):
        assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+( ; [^@/]+?)?( +--hash=sha256:[0-9a-f]{64})+", line), line


@pytest.mark.parametrize("lock", sorted(REQUIREMENTS.glob("parity-*.txt")), **BY_NAME)
def test_parity_adds_transformers_to_the_lock(lock: Path) -> None:
    """Without hashes, for torch may come from anywhere; without torch, whose builds carry versions of their own."""
    beside = pins(REQUIREMENTS / lock.name.replace("parity", "lock"))
    pinned = pins(lock)
    assert "transformers" in pinned
    assert "torch" not in pinned
    assert {name: pinned[name] for name in beside.keys() & pinned.keys()} == {
        name: beside[name] for name in beside if name in pinned
    }
    assert beside.keys() <= pinned.keys()


def test_all_that_is_installed_is_locked() -> None:
    """In an environment that `make install` made; `make triton` adds two of the GPU image's, in its releases."""
    if find_spec("torch"):
        pytest.skip("the parity extra is installed, and torch's own parts are in no lock")
    python = f"3.{min(sys.version_info.minor, 12)}"
    image = pins(REQUIREMENTS / "image-cuda13.txt")
    locked = pins(REQUIREMENTS / "build.txt") | pins(REQUIREMENTS / f"lock-{python}.txt")
    locked |= {name: image[name] for name in ("jax-triton", "triton")}
    installed = {canonicalize_name(item.metadata["Name"]): item.version for item in distributions()}
    for own in ("jaxserve", "pip"):
        installed.pop(canonicalize_name(own), None)
    assert installed.items() <= locked.items()


@pytest.mark.parametrize(("image", "extra"), [("image-cpu", None), ("image-cuda13", "cuda13")])
def test_an_image_has_what_serving_needs_in_the_releases_that_are_tested(image: str, extra: str | None) -> None:
    tested, pinned = pins(REQUIREMENTS / "lock-3.12.txt"), pins(REQUIREMENTS / f"{image}.txt")
    assert named(PROJECT["dependencies"] + (EXTRAS[extra] if extra else []), "3.12") <= pinned.keys()
    assert {name: pinned[name] for name in tested.keys() & pinned.keys()} == {
        name: tested[name] for name in tested if name in pinned
    }
    assert "pytest" not in pinned
    assert any(name.startswith("nvidia-") for name in pinned) == (extra is not None)


@pytest.mark.parametrize(("lock", "version"), [("lock-3.12", "0.11.2"), ("lock-3.11", "0.10.2")])
def test_lock_holds_the_chosen_jax(lock: str, version: str) -> None:
    locked = pins(REQUIREMENTS / f"{lock}.txt")
    assert (locked["jax"], locked["jaxlib"]) == (version, version)


def test_cuda_plugin_is_of_the_same_release_as_jax() -> None:
    """And only on Python 3.12: the jax of Python 3.11 is too old for the GPU kernels."""
    newer, older = (pins(REQUIREMENTS / f"lock-{version}.txt") for version in ("3.12", "3.11"))
    assert {newer[name] for name in ("jax", "jax-cuda13-plugin", "jax-cuda13-pjrt")} == {newer["jax"]}
    assert not {"jax-cuda13-plugin", "jax-cuda13-pjrt"} & older.keys()


def test_torch_and_transformers_come_with_the_parity_extra_alone() -> None:
    elsewhere = PROJECT["dependencies"] + [item for name, items in EXTRAS.items() if name != "parity" for item in items]
    heavy = {"torch", "transformers", "compressed-tensors", "accelerate"}
    assert not heavy & named(elsewhere, "3.12")
    assert named(EXTRAS["parity"], "3.12") == heavy
