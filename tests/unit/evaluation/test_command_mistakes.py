"""The command jaxserve.eval: what is wrong with a question is one line on stderr, before any model is loaded."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jaxserve import eval as command
from jaxserve.config.harness import prepare_harness
from jaxserve.evaluation import harness
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.unit.evaluation.made_results import made_result


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """The command sets variables for its process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def own_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the thousands of lm-eval's own tasks, whose files take ten seconds to read."""
    monkeypatch.setattr(harness, "_manager", partial(without_others, harness._manager))


def without_others(manager: Any, include_path: str | None, *, everything: bool) -> Any:
    return manager(include_path, everything=False)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command.main(arguments) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.count("\n") == 1
    return seen.err


def test_settings_that_make_no_sense(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "limit must be at least 1, got 0" in refused(capsys, "--limit", "0")
    assert "num_fewshot must be at least 0, got -1" in refused(capsys, "--num-fewshot", "-1")
    assert "bootstrap_iters must be at least 0" in refused(capsys, "--bootstrap-iters", "-1")
    assert "tasks must name at least one task" in refused(capsys, "--tasks", ",")
    assert "include_path '/nowhere' is not a directory" in refused(capsys, "--include-path", "/nowhere")
    assert "there is no directory /nowhere" in refused(capsys, "--output", "/nowhere/out.json")
    assert "it is a directory" in refused(capsys, "--plot", str(tmp_path))


@pytest.mark.usefixtures("own_only")
def test_an_unknown_task_is_told_with_names_near_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no task 'pico_additoin'; near it are pico_addition," in refused(capsys, "--tasks", "pico_additoin")
    assert "there is no task 'zzz'; '--tasks list' prints what there is" in refused(capsys, "--tasks", "pico,zzz")
    assert "there is no task 'zzz_*'" in refused(capsys, "--tasks", "zzz_*")


def test_a_task_that_is_named_twice(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "--tasks", "pico_choices,pico_addition_choice")
    assert "'pico_addition_choice' is named twice: by 'pico_choices' and by 'pico_addition_choice'" in message


def write_task(folder: Path, name: str, **changes: Any) -> str:
    """A task of the person's own."""
    task: dict[str, Any] = {"task": name, "dataset_path": "json", "test_split": "test", "output_type": "generate_until"}
    task |= {"doc_to_text": "prompt", "doc_to_target": "answer", "generation_kwargs": {"until": ["\n"]}}
    (folder / f"{name}.yaml").write_text(json.dumps(task | changes))  # JSON is YAML
    return name


def test_tasks_that_cannot_be_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    far = write_task(tmp_path, "far", dataset_path="somebody/something")
    missing = write_task(tmp_path, "missing", dataset_kwargs={"data_files": {"test": str(tmp_path / "missing.jsonl")}})
    where = ("--include-path", str(tmp_path))
    message = refused(capsys, *where, "--tasks", far)
    assert "the task 'far' needs data that are not on this machine, and nothing is fetched" in message
    assert "somebody/something" in message
    assert "the task 'missing' cannot be loaded: FileNotFoundError" in refused(capsys, *where, "--tasks", missing)


def test_tasks_that_an_engine_for_text_does_not_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = json.dumps("jaxserve.evaluation.tasks.documents.read")
    for name, changes, message in (
        ("unsafe", {"unsafe_code": True}, "runs code that the model writes"),
        ("seeing", {"doc_to_image": "prompt"}, "has images or sounds"),
    ):
        text = json.dumps({"task": name, "test_split": "test", "dataset_kwargs": {"name": "addition"}, **changes})
        text = text[:-1] + f', "doc_to_text": "prompt", "doc_to_target": "answer", "custom_dataset": !function {own}}}'
        (tmp_path / f"{name}.yaml").write_text(text)
        assert message in refused(capsys, "--include-path", str(tmp_path), "--tasks", name)


def test_models_that_cannot_be_scored(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no checkpoint directory at '/nowhere'" in refused(capsys, "/nowhere")
    tiny = write_tiny_checkpoint(tmp_path / "tiny")
    (tiny / "tokenizer_config.json").unlink()
    assert "tiny has no chat template" in refused(capsys, str(tiny), "--load-format", "dummy")
    (tiny / "tokenizer.json").unlink()
    assert "tiny has no tokenizer" in refused(capsys, str(tiny), "--load-format", "dummy")


def test_comparisons_that_make_no_sense(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text(json.dumps(made_result(right={"sums": [0.0, 1.0]}).as_dict()))
    assert "wants at least two" in refused(capsys, "--compare", str(result))
    assert "neither a checkpoint nor a result: /nowhere" in refused(capsys, "--compare", str(result), "/nowhere")
    assert "names every model: give none before it" in refused(capsys, "/nowhere", "--compare", str(result), str(result))
    (tmp_path / "other.json").write_text("{}")
    assert "is no result of this version" in refused(capsys, "--compare", str(result), str(tmp_path / "other.json"))


def test_results_are_compared_without_the_harness(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # an import fails, as where it is not installed
    for name, answers in (("a", [0.0] * 8), ("b", [1.0] * 8)):
        (tmp_path / f"{name}.json").write_text(json.dumps(made_result(name, right={"sums": answers}).as_dict()))
    files = [str(tmp_path / f"{name}.json") for name in "ab"]
    assert command.main(["--compare", *files, "--output", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]) == 0
    assert "+1.0000" in capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    assert [entry["jaxserve"]["model"]["name"] for entry in written["checkpoints"]] == ["a", "b"]
    assert written["differences"] == [
        [{"task": "sums", "metric": "acc,none", "difference": 1.0, "stderr": 0.0, "p": 2 / 2**8, "paired": True}]
    ]
    assert (tmp_path / "out.png").stat().st_size > 1000
    assert "pip install 'jaxserve[eval]'" in refused(capsys, "--tasks", "pico_addition")


def test_patterns_name_tasks_and_not_the_groups_that_have_them() -> None:
    loaded = harness.load_tasks(("pico_*_choice", "pico_text"), None)
    assert loaded.own
    assert set(loaded.loaded["groups"]) == {"pico_text"}
    assert len(loaded.loaded["tasks"]) == 6 + 2
    assert set(harness.load_tasks(("pico_spell*",), None).loaded["groups"]) == {"pico_spelling"}  # no task is called so


def test_a_task_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"include: {harness.OWN}/pico_addition.yaml\ntask: mine\n")
    loaded = harness.load_tasks((str(path),), None)
    assert list(loaded.loaded["tasks"]) == ["mine"]
    assert not loaded.own


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"HOME": "/nowhere"}, "scratch"),
        ({"HOME": ""}, "scratch"),
        ({"HOME": "/tmp"}, None),
        ({"HOME": "", "HF_HOME": "/somewhere"}, "/somewhere"),
        ({"HOME": "", "XDG_CACHE_HOME": "/somewhere"}, None),
    ],
)
def test_caches_go_to_the_persons_own_place_if_there_is_one(
    given: dict[str, str], chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    prepare_harness(Path("scratch"))
    assert os.environ.get("HF_HOME") == chosen
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["HF_DATASETS_OFFLINE"] == "1"
