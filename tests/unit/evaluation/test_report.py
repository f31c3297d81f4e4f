"""What is printed, drawn and written of results."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from jaxserve.errors import ConfigError
from jaxserve.evaluation.plot import plot
from jaxserve.evaluation.report import figure, show, show_comparison
from jaxserve.evaluation.result import (
    CHECKPOINTS,
    HEADER,
    Result,
    labels,
    plain,
    read_results,
    require_writable,
    steps,
    write_atomically,
)
from jaxserve.evaluation.scores import scores
from jaxserve.evaluation.values import values_of
from tests.unit.evaluation.made_results import made_result

HALF, MOST = [1.0, 0.0] * 10, [1.0] * 19 + [0.0]
TEXTS = [(-150.0, 100), (-290.0, 200)]
BETTER_TEXTS = [(score * 0.8, size) for score, size in TEXTS]


def printed(show: Callable[[Any, Console], None], what: Any) -> list[str]:
    """Lines without boxes, and cells without padding."""
    file = io.StringIO()
    show(what, Console(file=file, width=118))
    return [" ".join(line.replace("│", " ").split()) for line in file.getvalue().splitlines()]


def test_table_has_groups_before_their_tasks_and_what_it_took() -> None:
    result = made_result("m", right={"sums": HALF, "words": MOST}, texts={"texts": TEXTS}, groups={"all": ["sums", "words"]})
    lines = printed(show, result)
    rows = [line for line in lines if line.split()[:1] in (["all"], ["sums"], ["words"], ["texts"], ["byte_perplexity"])]
    assert rows == [
        "all acc ↑ 0.7250 0.0626 40",
        "sums acc ↑ 0.5000 0.1147 20",
        "words acc ↑ 0.9500 0.0500 20",
        "texts bits_per_byte ↓ 2.1160 – 2",
        "byte_perplexity ↓ 4.3348 –",
    ]
    assert lines[0] == "m: Llama, 1,000 parameters, float32"
    assert "100 prompt tokens, 25% of them from the prefix cache, and 20 output tokens in 2.0 s: 60 tokens/s" in lines[-1]


def test_tasks_stand_once_and_deeper_below_a_group_with_figures() -> None:
    result = made_result(right={"sums": HALF, "words": MOST, "alone": HALF}, groups={"all": ["sums", "words"]})
    result.harness["group_subtasks"]["everything"] = ["all", "sums"]  # a group without figures of its own
    result.harness["results"]["everything"] = {"alias": "everything"}
    assert [(score.task, score.depth, score.group) for score in scores(result)] == [
        ("all", 0, True),
        ("sums", 1, False),
        ("words", 1, False),
        ("alone", 0, False),
    ]


def test_a_filter_is_named() -> None:
    result = made_result(right={"sums": HALF})
    result.harness["results"]["sums"]["exact_match,strict-match"] = 0.25
    result.harness["results"]["sums"]["exact_match_stderr,strict-match"] = 0.1
    found = scores(result)
    assert [(score.label, score.value) for score in found] == [("acc", 0.5), ("exact_match (strict-match)", 0.25)]
    assert found[1].stderr == 0.1


def test_comparison_marks_what_is_more_than_chance_and_in_which_direction() -> None:
    first = made_result("a", right={"sums": HALF, "words": HALF}, texts={"texts": TEXTS * 4})
    worse = [0.0] * 20
    second = made_result("b", right={"sums": MOST, "words": worse}, texts={"texts": BETTER_TEXTS * 4})
    lines = printed(show_comparison, [first, second])
    found = [line for line in lines if line.startswith(("b ", "sums", "words", "texts"))]
    assert found == [
        "sums acc ↑",
        "b 0.9500 0.0500 +0.4500 0.1141 0.004 * better",
        "words acc ↑",
        "b 0.0000 0.0000 -0.5000 0.1147 0.002 * worse",
        "texts bits_per_byte ↓",
        "b 1.6928 – -0.4232 0.0024 0.008 * better",
        "texts byte_perplexity ↓",
        "b 3.2328 – -1.1020 0.0063 0.008 * better",
    ]
    assert "4 of them are document by document (randomisation test)." in lines


def test_comparison_says_what_it_cannot_tell_and_what_is_not_comparable() -> None:
    texts = {"texts": TEXTS}
    second = made_result("b", texts=texts, documents="others", limit=2)
    second.header["notes"].append("contexts were too long")
    lines = printed(show_comparison, [made_result("a", texts=texts), second])
    assert "Nothing tells whether these differences are more than chance." in lines
    assert "Careful: limit differs: None, 2" in lines
    assert "b: contexts were too long" in lines


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0.0000"), (0.00004, "4.0e-05"), (0.5, "0.5000"), (-99.0, "-99.0000"), (1234.56, "1,234.6")],
)
def test_figures_show_what_counts(value: float | None, shown: str) -> None:
    assert figure(value) == shown
    assert figure(0.25, signed=True) == "+0.2500"


def test_names_tell_checkpoints_apart() -> None:
    results = [made_result("model") for _ in range(3)]
    for result, path in zip(results, ("/x/1/model", "/x/2/model", "/y/2/model"), strict=True):
        result.header["model"]["path"] = path
    assert labels(results) == ["1/model", "x/2/model", "y/2/model"]
    assert labels([results[0], results[0], made_result("b")]) == ["//x/1/model (1)", "//x/1/model (2)", "b"]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["checkpoint-500", "checkpoint-1000"], [500, 1000]),
        (["step_2k", "step_10k"], [2, 10]),
        (["checkpoint-1000", "checkpoint-500"], None),
        (["a-1", "b"], None),
        (["a-1"], None),
    ],
)
def test_steps_of_a_training_run(names: list[str], numbers: list[int] | None) -> None:
    assert steps(names) == numbers


@pytest.mark.parametrize("names", [["run-100", "run-200", "run-300"], ["one"], ["a model with a long name", "another model"]])
def test_plots_are_pictures(names: list[str], tmp_path: Path) -> None:
    made = [made_result(name, right={"sums": HALF}, texts={"texts": TEXTS}, groups={"all": ["sums"]}) for name in names]
    plot(made, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    first, second = made_result("a", right={"sums": HALF}), made_result("b", right={"sums": MOST})
    write_atomically(tmp_path / "one.json", first.as_dict())
    assert read_results(tmp_path / "one.json") == [first]
    write_atomically(tmp_path / "both.json", {CHECKPOINTS: [first.as_dict(), second.as_dict()]})
    assert read_results(tmp_path / "both.json") == [first, second]


def test_a_file_is_never_half_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_atomically(path, {"old": 1})

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(path, {"new": Unprintable()})
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        write_atomically(tmp_path / "folder", {"new": 1})
    assert json.loads(path.read_text()) == {"old": 1}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "out.json"]


def test_what_tasks_give_becomes_json() -> None:
    given = {
        "a": np.float64(0.5),
        "b": float("nan"),
        "c": {1},
        "d": np.array([1, 2]),
        5: (np.int64(3), np.bool_(True)),
        "e": Path("x"),
    }
    assert plain(given) == {"a": 0.5, "b": None, "c": [1], "d": [1, 2], "5": [3, True], "e": "x"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is no result of this version"),
        ('{"results": {}}', "is no result of this version"),
        (json.dumps({HEADER: {"format": 0}, "results": {}}), "is no result of this version"),
        (json.dumps({CHECKPOINTS: [{}]}), "is no result of this version"),
    ],
)
def test_other_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_results(path)


def test_places_that_cannot_be_written_are_told_before_the_work(tmp_path: Path) -> None:
    require_writable(tmp_path / "out.json", "output")
    with pytest.raises(ConfigError, match="it is a directory"):
        require_writable(tmp_path, "output")
    with pytest.raises(ConfigError, match="there is no directory"):
        require_writable(tmp_path / "none" / "out.json", "output")


def sample(**metrics: Any) -> dict[str, Any]:
    return {"filter": "none", "doc_hash": "x", "metrics": list(metrics), **metrics}


def test_values_of_documents_are_numbers_or_pairs() -> None:
    samples = [sample(acc=np.float64(1.0), bits=(-3.0, 4), bleu=("a", "b")), sample(acc=True, bits=(-2.0, 4), bleu=("a", "c"))]
    (values,) = values_of({"task": samples}).values()
    assert values.pop("sha256") != values_of({"task": samples[:1]})["task"]["sha256"]
    assert values == {"acc,none": [1.0, 1.0], "bits,none": [[-3.0, 4.0], [-2.0, 4.0]]}


def test_a_metric_that_some_documents_lack_has_no_values() -> None:
    assert "acc,none" not in values_of({"task": [sample(acc=1.0), sample()]})["task"]


def test_a_result_is_its_harness_results_under_a_header() -> None:
    result = made_result(right={"sums": HALF})
    assert result.as_dict()["results"] == result.harness["results"]
    assert Result(result.as_dict()[HEADER], result.harness) == result
