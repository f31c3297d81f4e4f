"""Texts that stand for numbers: the schema allows what is taken, and nothing that is out of range."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server.http.numbers import integer, integers, number, numeral, up_to


@pytest.mark.parametrize("most", [0, 1, 5, 9, 10, 20, 99, 100, 255, 512, 1023, 4096])
def test_integers_up_to_a_bound(most: int) -> None:
    pattern = re.compile(up_to(most))
    assert [one for one in range(12_000) if pattern.fullmatch(str(one))] == list(range(most + 1))


@pytest.mark.parametrize(
    ("kind", "limits", "inside", "outside"),
    [
        ("number", {"minimum": 0, "maximum": 100}, "0 0.5 99.9 100 100.0", "100.1 -1 101"),
        ("number", {"exclusiveMinimum": 0, "maximum": 1}, "1 0.5 0.50 1.0", "0 0.0 1.1 2"),
        ("number", {"minimum": -2, "maximum": 2}, "-2 -1.5 2 0", "2.1 3"),
        ("number", {"minimum": 0, "maximum": 1}, "0 1 0.1", "1.1 2"),
        ("number", {"exclusiveMinimum": 0}, "1 0.5 10.25", "0 0.0 -1"),
        ("integer", {"minimum": -1, "maximum": 2**31 - 1}, "-1 0 2147483647", "2147483648 -2"),
        ("integer", {"minimum": 1, "maximum": 128}, "1 99 128", "0 129"),
        ("integer", {"minimum": 0}, "0 12", "-1"),
        ("integer", {"minimum": 2}, "2 10 9999999999999999999", "-1 0 1 100000000000000000000"),
        ("integer", {"minimum": 3600, "maximum": 2592000}, "4000 2592000", "0 3599 2592001"),
    ],
)
def test_the_schema_of_texts(kind: str, limits: dict[str, Any], inside: str, outside: str) -> None:
    pattern, read = re.compile(numeral(kind, limits)["pattern"]), {"integer": integer, "number": number}[kind]
    assert [text for text in inside.split() if not pattern.fullmatch(text)] == []
    assert [text for text in inside.split() if isinstance(read(text), str)] == []
    assert [text for text in outside.split() if pattern.fullmatch(text)] == []


def test_what_is_no_number_stays_as_it_is() -> None:
    values: tuple[object, ...] = ("", "x", "007", "5.5", "1e3", "1_000", " 5", "٣", None, True, [], 5.5, "9" * 21)
    for value in values:
        assert integer(value) is value
    for value in ("", "x", "nan", "inf", "1e3", ".5", None, True):
        assert number(value) is value
    ids = [1, 2, True]
    assert integers(ids) is ids
    assert integers([1.0, 2, 2.5, True]) == [1, 2, 2.5, True]
