"""The house rules that no linter checks: the tools that need no environment, import costs, the console script."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve import cli

ROOT = Path(__file__).resolve().parents[2]


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


IMPORT_TRITON = ("triton", "triton_kernel")  # only where they are chosen


@pytest.mark.parametrize("package", ["pallas_kernels", "sharding"])
def test_device_packages_import_only_jax(package: str) -> None:
    allowed = {package, "jax", "numpy", *sys.stdlib_module_names}
    for path in (ROOT / package).rglob("*.py"):
        packages = allowed | (
            {"jax_triton", "triton"} if path.name in ("triton.py", "triton_kernel.py") else set()
        )  # imported only where chosen
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
    assert re.findall(r"^make ([\w-]+)", shown, re.MULTILINE) == targets[1].split()


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
