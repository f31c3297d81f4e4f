"""`python -m jaxserve.eval` as a person runs it, with the bundled model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxserve.eval import main
from tests.support.serve_process import ROOT
from tests.system.interop.conftest import SMALL

OWN = ("pico_addition", "pico_json_fill_choice", "pico_text_unseen")
MINE = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "mine.jsonl"}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "prompt",
    "doc_to_target": "answer",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
ENGINE = (*SMALL, "--record-steps", "0")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder with a task of the person's own, and an evaluation in it by somebody who has no home."""
    folder = tmp_path_factory.mktemp("eval")
    (folder / "tasks").mkdir()
    (folder / "tasks" / "mine.yaml").write_text(json.dumps(MINE))  # JSON is YAML
    (folder / "mine.jsonl").write_text(json.dumps({"prompt": "What is 17 + 25?", "answer": "42"}) + "\n")
    command = [sys.executable, "-m", "jaxserve.eval", "--tasks", ",".join((*OWN, "mine")), "--include-path", "tasks"]
    command += ["--limit", "4", "--apply-chat-template", "--log-samples", "--output", "out.json", "--plot", "out.png", *ENGINE]
    environment = {name: value for name, value in os.environ.items() if name not in ("HF_HOME", "XDG_CACHE_HOME")}
    # Compiled programs and crash dumps go to a home, too: those of other tests are used, dumps are off.
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "jaxserve"))
    environment |= {"HOME": "", "PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": cache}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def result(folder: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return written


def test_figures_are_right_and_printed(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = ran
    figures = result(folder)["results"]
    assert {task: figures[task]["exact_match,none"] for task in ("pico_addition", "mine")} == {"pico_addition": 1.0, "mine": 1.0}
    assert figures["pico_json_fill_choice"]["acc,none"] == 1.0
    assert 1.0 < figures["pico_text_unseen"]["bits_per_byte,none"] < 2.5
    rows = [line.replace("│", " ").split() for line in done.stdout.splitlines()]
    assert ["mine", "exact_match", "↑", "1.0000", "–", "1"] in rows
    assert ["pico_json_fill_choice", "acc", "↑", "1.0000", "0.0000", "4"] in rows


def test_nothing_else_is_said_or_left_behind(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = ran
    assert done.stderr == ""
    assert sorted(path.name for path in folder.iterdir()) == ["mine.jsonl", "out.json", "out.png", "tasks"]
    assert [path.name for path in (folder / "tasks").iterdir()] == ["mine.yaml"]


def test_header_says_of_what_and_how(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    written = result(ran[0])
    header = written["jaxserve"]
    assert header["model"] | {"name": "pico", "dtype": "bfloat16", "max_model_len": 512} == header["model"]
    assert len(header["model"]["fingerprint"]) == 16
    assert header["settings"]["limit"] == 4
    assert header["settings"]["engine"]["max_num_seqs"] == 4
    assert set(header["versions"]) == {"python", "jaxserve", "jax", "lm_eval", "datasets"}
    assert header["tokens"]["prompt"] > 4 * 512  # four texts, each longer than the context
    assert 0 < header["tokens"]["cached"] < header["tokens"]["prompt"]
    assert header["tokens"]["output"] == sum(len(sample["answer"]) + 1 for sample in answered(written))
    assert header["seconds"]["evaluate"] > 0
    assert {
        task: len(values["exact_match,none"]) for task, values in header["values"].items() if "exact_match,none" in values
    } == {
        "pico_addition": 4,
        "mine": 1,
    }


def answered(written: dict[str, Any]) -> list[dict[str, Any]]:
    """What was answered in writing: a token for each digit, and one that ends it."""
    return [sample["doc"] for task in ("pico_addition", "mine") for sample in written["samples"][task]]


def test_a_checkpoint_is_compared_with_a_result(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same model again: nothing differs, not even the last digit. Without the task that only the result has."""
    monkeypatch.setattr(os, "environ", os.environ.copy())  # the command sets variables for its process
    options = ["--tasks", ",".join(OWN), "--limit", "4", "--output", str(tmp_path / "both.json"), *ENGINE]
    assert main(["--compare", str(ran[0] / "out.json"), "pico", *options]) == 0
    written = json.loads((tmp_path / "both.json").read_text())
    (listed,) = written["differences"]
    assert [(entry["task"], entry["difference"], entry["p"], entry["paired"]) for entry in listed] == [
        ("pico_addition", 0.0, 1.0, True),
        ("pico_json_fill_choice", 0.0, 1.0, True),
        ("pico_text_unseen", 0.0, 1.0, True),
        ("pico_text_unseen", 0.0, 1.0, True),
    ]
    assert "pico (2)" in capsys.readouterr().out
    assert "samples" not in written["checkpoints"][1]
