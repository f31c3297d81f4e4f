"""A program that runs under another interpreter, one that has the engine beside: asked and answering in lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Peer:
    """Such a program, beside this module.

    Args:
        python: the interpreter.
        script: name of the program's file.
        arguments: its own.
        environment: variables that it gets besides this process's.

    Attributes:
        hello: the line that it begins with.
    """

    def __init__(self, python: str, script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._script = script
        self._process = subprocess.Popen(
            [python, str(Path(__file__).parent / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.hello = self._read()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._script} ended; has its interpreter what it imports?")
        answer: dict[str, Any] = json.loads(line)
        return answer
