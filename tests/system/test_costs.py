"""The plugin that counts what tests cost, in a run of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.costs import Counters

ROOT = Path(__file__).parents[2]
CONFTEST = """
from pathlib import Path
from tests.support import costs

costs.BUDGET = Path(__file__).with_name("budget.json")

def pytest_addoption(parser):
    parser.addoption("--costs")
    parser.addoption("--write-budget", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(costs.Costs(config), "costs")
"""
SPAWNS = """
import subprocess, sys

def test_nothing():
    pass

def test_spawns():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a tree whose root is the directory."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={directory}"]
    return subprocess.run(
        [*command, "--import-mode=importlib", "-m", "not extended", *arguments],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_limits_are_enforced(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for folder in ("unit", "system"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}_spawns.py").write_text(SPAWNS)
    unit = run(tmp_path, "tests/unit")
    assert unit.returncode == 1
    assert "1 processes in a unit test" in unit.stdout
    assert "1 failed, 1 passed" in unit.stdout
    for allowed, code in ((1, 0), (0, 1)):
        (tmp_path / "budget.json").write_text(json.dumps({"tests/system": {"processes": allowed}}))
        system = run(tmp_path, "tests/system")
        assert (system.returncode, "2 passed" in system.stdout) == (code, True), system.stdout
        assert ("1 processes, and tests/budget.json allows 0" in system.stdout) == (allowed == 0)


def test_processes_are_counted() -> None:
    counters = Counters()
    before = counters.now()
    subprocess.run([sys.executable, "-c", ""], check=True)
    found = counters.now().since(before)
    assert (found.processes, found.browsers, found.clusters) == (1, 0, 0)
