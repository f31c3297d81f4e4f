"""Input files of batches: good ones are counted, of others every problem is told."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.jobs.lines import LineError, parse, raw_lines
from server.batches.checking import MOST_PROBLEMS, Checked, InputRules, check_input

RULES = InputRules("/v1/completions", max_lines=200, max_line_bytes=1000)


def line(custom_id: object = "a", **fields: Any) -> bytes:
    given = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}, **fields}
    return json.dumps({name: value for name, value in given.items() if value is not None}).encode()


def checked(path: Path, *lines: bytes) -> Checked:
    path.write_bytes(b"\n".join(lines))
    found = check_input(path, RULES, lambda: False)
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input"


def test_requests_are_counted_and_blank_lines_are_none(path: Path) -> None:
    assert checked(path, line("a"), b"", line("b"), b"  ", line("c"), b"") == Checked(3, ())


@pytest.mark.parametrize(
    ("second", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (line(None), "invalid_custom_id", "custom_id"),
        (line(7), "invalid_custom_id", "custom_id"),
        (line("a"), "duplicate_custom_id", "custom_id"),
        (line("b", method="GET"), "invalid_method", "method"),
        (line("b", url="/v1/chat/completions"), "invalid_url", "url"),
        (line("b", url=None), "invalid_url", "url"),
        (line("b", body=None), "invalid_body", "body"),
        (line("b" * 1000), "line_too_long", None),
    ],
)
def test_a_problem_is_told_with_its_line(path: Path, second: bytes, code: str, param: str | None) -> None:
    found = checked(path, line("a"), second, line("c"))
    assert [(one.code, one.line, one.param) for one in found.problems] == [(code, 2, param)]
    assert found.problems[0].message


@pytest.mark.parametrize(
    "value", ["1" + "0" * 400, "1e400", "NaN", '"\\ud800"', '{"\\ud800": 1}', "[" * 300 + "]" * 300], ids=lambda text: text[:8]
)
def test_a_value_that_no_request_may_have_fails_its_line_alone(path: Path, value: str) -> None:
    odd = line("b", body={"x": 5}).replace(b"5", value.encode())
    assert checked(path, line("a"), odd, line("c")) == Checked(3, ())
    found = [parse(raw) for raw in raw_lines(io.BytesIO(odd), number=1, offset=0, end=9, size=len(odd), longest=9999)]
    assert [(one.custom_id, one.code) for one in found if isinstance(one, LineError)] == [("b", "invalid_request")]
    assert isinstance(found[0], LineError)
    assert found[0].message.startswith("body.x")
    (problem,) = checked(path, line("a"), line("\ud800")).problems
    assert problem.code == "invalid_json_line", "without a name an error could not be told apart"


def test_a_line_too_deep_to_be_read_fails_alone(path: Path) -> None:
    depth = 10_000
    deep = line("b", body={"x": 5}).replace(b"5", b"[" * depth + b"]" * depth)
    path.write_bytes(b"\n".join([line("a"), deep, line("c")]))
    rules = InputRules("/v1/completions", max_lines=9, max_line_bytes=10**6)
    assert check_input(path, rules, lambda: False) == Checked(3, ())


def test_all_problems_are_told_up_to_a_number(path: Path) -> None:
    found = checked(path, *(b"{" for _ in range(MOST_PROBLEMS - 1)), line("a"), b"{")
    assert [one.line for one in found.problems] == [*range(1, MOST_PROBLEMS), MOST_PROBLEMS + 1]
    assert len(checked(path, *(b"{" for _ in range(MOST_PROBLEMS + 20))).problems) == MOST_PROBLEMS


def test_names_of_any_characters_are_told_apart(path: Path) -> None:
    assert checked(path, line("\u00e9"), line("e\u0301"), line("e"), line("E"), line("e ")).problems == ()


@pytest.mark.parametrize(("lines", "code"), [([], "empty_file"), ([b"", b" "], "empty_file")])
def test_an_empty_file_is_none(path: Path, lines: list[bytes], code: str) -> None:
    assert [(one.code, one.line) for one in checked(path, *lines).problems] == [(code, None)]


def test_too_many_requests_are_told_with_the_limit(path: Path) -> None:
    assert checked(path, *(line(f"{number}") for number in range(200))).problems == ()
    (problem,) = checked(path, *(line(f"{number}") for number in range(201))).problems
    assert (problem.code, problem.line) == ("too_many_requests", None)
    assert "200" in problem.message


def test_a_check_can_be_halted(path: Path) -> None:
    path.write_bytes(line("a") + b"\n" + b"{")
    seen = iter([False, True])
    assert check_input(path, RULES, lambda: next(seen)) is None
