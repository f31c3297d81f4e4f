"""The tasks that jaxserve ships: how their documents are made, and what is in them."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TASKS = ROOT / "jaxserve" / "evaluation" / "tasks"
# A script beside scripts, which import it by this name.
is_held_out = runpy.run_path(str(ROOT / "examples" / "pico" / "tasks.py"))["is_held_out"]
KINDS = ("addition", "addition_one_digit", "subtraction", "reversal", "uppercase", "digit_sort", "letter_count", "json_fill")


def documents(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="NOT CHECKED: another standard library than the documents are made of")
def test_generator_makes_the_same_bytes_again(tmp_path: Path) -> None:
    pytest.importorskip("idlelib", reason="NOT CHECKED: this Python comes without idlelib, which the documents are made of")
    subprocess.run([sys.executable, "examples/pico/harness.py", str(tmp_path)], cwd=ROOT, check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in TASKS.glob("*.jsonl")}


def test_everything_together_is_small() -> None:
    assert sum(path.stat().st_size for path in TASKS.iterdir() if path.is_file()) < 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_different_questions_and_five_examples(kind: str) -> None:
    listed = documents(kind)
    assert [document["split"] for document in listed] == ["fewshot"] * 5 + ["test"] * 100
    assert len({document["prompt"] for document in listed}) == len(listed)


def numbers(prompt: str) -> list[int]:
    return sorted(int("".join(digits)) for digits in "".join(c if c.isdigit() else " " for c in prompt).split())


@pytest.mark.parametrize(("kind", "sign"), [("addition", 1), ("addition_one_digit", 1), ("subtraction", -1)])
def test_sums_are_right_and_were_held_out(kind: str, sign: int) -> None:
    for document in documents(kind):
        low, high = numbers(document["prompt"])
        assert is_held_out(f"{low},{high}")
        assert (low < 10) == (kind == "addition_one_digit")
        assert abs(int(document["answer"])) == high + sign * low


def test_words_are_right_and_were_held_out() -> None:
    for kind in ("reversal", "uppercase"):
        for document in documents(kind):
            word = document["prompt"].split('"')[1]
            assert is_held_out(word)
            assert document["answer"] == (word[::-1] if kind == "reversal" else word.upper())


@pytest.mark.parametrize("kind", ["addition", "subtraction", "digit_sort", "json_fill", "reversal", "uppercase"])
def test_the_right_choice_is_anywhere_among_four(kind: str) -> None:
    listed = documents(kind)
    assert all(document["choices"][document["gold"]] == document["answer"] for document in listed)
    assert {len(set(document["choices"])) for document in listed} == {4}
    places = [document["gold"] for document in listed]
    assert all(15 <= places.count(place) <= 40 for place in range(4))  # the same place always would score a quarter
