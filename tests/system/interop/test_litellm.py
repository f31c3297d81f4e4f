"""litellm through its providers `openai/`, `text-completion-openai/` and `anthropic/`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.system.interop.conftest import Gated
from tests.system.interop.programs import run


def test_litellm(pico: Gated, tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).with_name("litellm_client.py")), pico.process.http, pico.keys["acme"]]
    seen = json.loads(run(program, cwd=tmp_path).stdout.splitlines()[-1])
    answers = {surface: seen[surface] for surface in ("chat", "stream", "response", "message")}
    assert answers == dict.fromkeys(answers, "42")
    assert (seen["logprobs"], seen["usage"], seen["tokens"]) == (["4", "2", "<|end|>"], [17, 17, 5], 17)
    assert seen["text"]
    assert seen["failures"] == [
        ["BadRequestError", 400],
        ["AuthenticationError", 401],
        ["NotFoundError", 404],
        ["ContextWindowExceededError", 400],
    ]
