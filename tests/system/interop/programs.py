"""Clients that need a process of their own: their imports warn, or their protobuf packages clash with ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

SECONDS = 300
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def run(command: Sequence[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that nobody lets onto the network; what it complains of is the assertion's message."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **OFFLINE, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done
