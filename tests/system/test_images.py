"""The Dockerfiles, as far as they can be checked without Docker: what they copy, which locks they install, flags they give."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts" / "docker"
DOCKERFILES = sorted(path for path in FOLDER.iterdir() if path.suffix != ".dockerignore")
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
EACH = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Each with what follows it, on one line."""
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", "").splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in whole)]


def copied(dockerfile: Path) -> list[str]:
    """What comes from the checkout."""
    found = [rest.split() for name, rest in instructions(dockerfile) if name == "COPY" and not rest.startswith("--from")]
    return [source for words in found for source in words[:-1]]


def test_there_is_one_for_cpus_and_one_for_cuda() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.cuda"]


@EACH
def test_all_that_the_package_is_built_from_is_there_and_copied(dockerfile: Path) -> None:
    sources = copied(dockerfile)
    assert {*BUILD["packages"], BUILD["hooks"]["custom"]["path"], "pyproject.toml", "README.md", "LICENSE"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
    assert dockerfile.with_name(f"{dockerfile.name}.dockerignore").is_file()


@EACH
def test_what_is_installed_is_locked(dockerfile: Path) -> None:
    commands = [part for name, rest in instructions(dockerfile) if name == "RUN" for part in rest.split("&&")]
    installs = [command.split() for command in commands if " pip install " in command]
    *locked, package = installs
    for words in locked:
        assert {"--require-hashes", "--no-deps"} <= set(words)
        assert words[-1] in copied(dockerfile)
    assert {"--no-deps", "--no-build-isolation", "."} <= set(package)
    kind = {"Dockerfile.cpu": "image-cpu", "Dockerfile.cuda": "image-cuda13"}[dockerfile.name]
    assert [words[-1] for words in locked] == ["requirements/build.txt", f"requirements/{kind}.txt"]


@EACH
def test_both_stages_have_the_python_of_the_locks(dockerfile: Path) -> None:
    bases = [rest.split()[0] for name, rest in instructions(dockerfile) if name == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.12(-slim)?-bookworm", base) for base in bases)


@EACH
def test_the_command_that_it_shows_starts_a_server(dockerfile: Path) -> None:
    given = dict(instructions(dockerfile))
    program, command, *flags = json.loads(given["ENTRYPOINT"])
    assert (program, command) == ("/opt/jaxserve/bin/jaxserve", "serve")
    shown = re.search(rf"^# docker run .* jaxserve-{dockerfile.suffix[1:]} /model (.*)$", dockerfile.read_text(), re.MULTILINE)
    assert shown is not None
    command = [sys.executable, "-m", "jaxserve.serve", *flags, "pico", *shown[1].split(), "--port", "0", "--grpc-port", "0"]
    checked = subprocess.run([*command, "--check"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert checked.returncode == 0, checked.stderr
    assert given["EXPOSE"] == "8000 8001"
