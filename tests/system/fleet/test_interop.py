"""Clients of one server ask a fleet instead: the tests that are marked so, with one fleet for all of them.

`make fleet-interop` runs every test of a server's process that way.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.serve_process import ROOT, environment

pytest.importorskip("ray", reason="NOT CHECKED: fleets, for Ray is not here")


def test_clients_of_a_server_do_not_know_a_fleet_from_it() -> None:
    tests = [sys.executable, "-m", "pytest", "--fleet", "-m", "fleet", "-p", "no:cacheprovider", "tests/system/interop"]
    done = subprocess.run(tests, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
