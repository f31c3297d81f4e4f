"""Agent loops of the libraries that the tests' environment has, with the bundled model; `make agents` tries more of them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.system.interop.conftest import Gated
from tests.system.interop.programs import run

LOOPS = Path(__file__).resolve().parents[3] / "scripts" / "agent_loops.py"
LIBRARIES = ("openai", "anthropic", "litellm")


def test_agents(pico: Gated, tmp_path: Path) -> None:
    command = [sys.executable, str(LOOPS), pico.process.http, *LIBRARIES, "--api-key", pico.keys["acme"]]
    assert run(command, cwd=tmp_path).stdout.splitlines()[-3:] == [f"{name}: right" for name in LIBRARIES]
