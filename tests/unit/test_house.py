"""The house rules that no linter checks: the tools that need no environment, locks, import costs, the console script."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jaxserve import cli

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted((ROOT / "requirements").glob("lock-*.txt"))


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=;! ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def pins(lock: Path) -> dict[str, str]:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    return {name_of(line): line.partition("==")[2] for line in lines}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_lock_pins_every_dependency_exactly(lock: Path) -> None:
    locked = pins(lock)
    python = {"python_version": lock.stem.removeprefix("lock-"), "sys_platform": "linux"}
    wanted = map(Requirement, PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
    applying = {name_of(item.name) for item in wanted if item.marker is None or item.marker.evaluate(python)}
    assert applying <= locked.keys()
    assert all(re.fullmatch(r"[0-9a-z.]+", version) for version in locked.values())


@pytest.mark.parametrize(("lock", "version"), [("lock-3.12", "0.11.2"), ("lock-3.11", "0.10.2")])
def test_lock_holds_the_chosen_jax(lock: str, version: str) -> None:
    locked = pins(ROOT / "requirements" / f"{lock}.txt")
    assert (locked["jax"], locked["jaxlib"]) == (version, version)


def test_cuda_plugin_is_of_the_same_release_as_jax() -> None:
    """And only on Python 3.12: the jax of Python 3.11 is too old for the GPU kernels."""
    newer, older = (pins(ROOT / "requirements" / f"lock-{version}.txt") for version in ("3.12", "3.11"))
    assert {newer[name] for name in ("jax", "jax-cuda13-plugin", "jax-cuda13-pjrt")} == {newer["jax"]}
    assert not {"jax-cuda13-plugin", "jax-cuda13-pjrt"} & older.keys()


def test_torch_and_transformers_come_with_the_parity_extra_alone() -> None:
    extras = PROJECT["optional-dependencies"]
    elsewhere = PROJECT["dependencies"] + [item for name, items in extras.items() if name != "parity" for item in items]
    assert not {"torch", "transformers"} & {name_of(item) for item in elsewhere}
    assert {"torch", "transformers"} == {name_of(item) for item in extras["parity"]}


def fresh_import(modules: list[str]) -> set[str]:
    """Top-level packages that a new interpreter holds after importing the modules."""
    code = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def modules_under(*packages: str) -> list[str]:
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths)


def test_cache_and_scheduler_run_without_jax() -> None:
    loaded = fresh_import(modules_under("jaxserve/cache", "jaxserve/scheduler"))
    assert not loaded & {"jax", "jaxlib", "flax"}


def test_offline_api_needs_no_server_packages() -> None:
    assert not fresh_import(["jaxserve.llm"]) & {"fastapi", "starlette", "uvicorn", "grpc", "server", "torch", "ray"}


@pytest.mark.parametrize("package", ["pallas_kernels", "sharding"])
def test_device_packages_import_only_jax(package: str) -> None:
    allowed = {package, "jax", "numpy", *sys.stdlib_module_names}
    for path in (ROOT / package).rglob("*.py"):
        packages = allowed | ({"jax_triton", "triton"} if path.name == "triton.py" else set())  # imported only where chosen
        for node in ast.walk(ast.parse(path.read_text())):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert {name.partition(".")[0] for name in names} <= packages, path


def test_cli_lists_the_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([])
    listed = re.findall(r"^  (\w+)", capsys.readouterr().out, re.MULTILINE)
    assert listed == [name for name in cli.COMMANDS if (ROOT / "jaxserve" / f"{name}.py").exists()]


def test_cli_refuses_an_unknown_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["sevre"])
    assert exit.value.code == 2
    assert re.fullmatch(r"jaxserve: no command 'sevre'; there are serve, chat, .*\n", capsys.readouterr().err)


def test_cli_runs_a_command_with_the_arguments_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.py").write_text("import sys\nassert __name__ == '__main__'\nprint(sys.argv)\n")
    code = "import jaxserve, sys; jaxserve.__path__.insert(0, sys.argv.pop(1)); from jaxserve.cli import main; main()"
    monkeypatch.chdir(ROOT)
    command = [sys.executable, "-c", code, str(tmp_path), "plan", "--size", "3"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['" + str(tmp_path / "plan.py") + "', '--size', '3']"


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert re.findall(r"^make (\w+)", shown, re.MULTILINE) == targets[1].split()


def fake_python(folder: Path, version: str, *, works: bool) -> None:
    folder.mkdir(parents=True)
    text = f'#!/bin/sh\ncase "$2" in *ensurepip*) echo {version} ;; *) echo "$0" ;; esac\n'
    path = folder / f"python{version}"
    path.write_text(text if works else "#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    path.chmod(0o755)


def test_find_python_passes_over_shims_and_looks_into_pyenv(tmp_path: Path) -> None:
    fake_python(tmp_path / "shims", "3.12", works=False)
    fake_python(tmp_path / "bin", "3.13", works=True)
    environment = {"PATH": f"{tmp_path}/shims:{tmp_path}/bin", "PYENV_ROOT": f"{tmp_path}/pyenv"}

    def found() -> str:
        command = ["/bin/sh", str(ROOT / "scripts" / "find-python")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert found() == str(tmp_path / "bin" / "python3.13")
    fake_python(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin", "3.12", works=True)
    assert found() == str(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin" / "python3.12")
