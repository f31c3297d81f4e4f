"""Bounds on JSON from outside, and that errors of it can always be sent."""

from __future__ import annotations

import json

import msgspec
import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.untrusted import MAX_DIGITS, MAX_NESTING, check_json, check_path, refused

HUGE = "1" + "0" * 400


def refusal(text: str, param: str | None = None, *, any_size: bool = False) -> str:
    with pytest.raises(InvalidRequestError) as info:
        check_json(json.loads(text), text, param, any_size=any_size)
    assert info.value.message.encode()
    return info.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{{"a": [1, {{"b": {HUGE}}}]}}', "a[1].b must be an integer of 64 bits"),
        ('{"a": 18446744073709551616}', "a must be an integer of 64 bits"),
        ('{"a": -9223372036854775809}', "a must be an integer of 64 bits"),
        ('{"a": 1e400}', "a must be a finite number"),
        ('{"a": [NaN]}', "a[0] must be a finite number"),
        ('{"a": "x\\ud800"}', "a has half of a surrogate pair"),
        ('{"a": {"\\udfff": 1}}', "a has the name '\\udfff', which has half of a surrogate pair"),
        (HUGE, "the body must be an integer of 64 bits"),
        ("[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1), "[0]" * 24 + "... is nested too deeply"),
        (f'{{"{"n" * 500}": {HUGE}}}', f"['{'n' * 79}] must be an integer of 64 bits"),
        (f'{{"parameters": {{"minItems": {"9" * (MAX_DIGITS + 1)}}}}}', "parameters.minItems must be an integer of at most 1000"),
    ],
)
def test_values_out_of_bounds_are_refused_by_their_place(text: str, message: str) -> None:
    assert refusal(text).startswith(message)
    assert refusal(text, "field").startswith("field: " if not message.startswith("the body") else "field must")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [18446744073709551615, -9223372036854775808, 1.5e300], "b": "\\ud83d\\ude00 0000000000000000000000"}',
        f'{{"tools": [{{"function": {{"parameters": {{"properties": {{"a": {{"minItems": {HUGE}}}}}}}}}}}]}}',
        f'{{"content": [{{"type": "tool_use", "input": {{"x": {HUGE}}}}}]}}',
        "[" * MAX_NESTING + "]" * MAX_NESTING,
        json.dumps(["[{" * 1000] * 300),
    ],
)
def test_other_values_pass(text: str) -> None:
    check_json(json.loads(text), text)
    check_json(msgspec.json.decode(text.encode()), text.encode())


def test_as_bytes_the_same_integers_and_nests_are_refused() -> None:
    for text in (f'{{"a": {HUGE}}}'.encode(), b'{"a":' * 300 + b"1" + b"}" * 300):
        with pytest.raises(InvalidRequestError):
            check_json(msgspec.json.decode(text), text)


@pytest.mark.parametrize("error", [RecursionError, OverflowError, MemoryError, ValueError("Exceeds the limit (4300 digits)")])
def test_errors_of_values_name_the_field(error: Exception) -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages cannot be processed") as info, refused("messages"):
        raise error
    assert info.value.param == "messages"


def test_messages_can_be_sent_whatever_they_quote() -> None:
    error = InvalidRequestError("\ud800" + "x" * 100_000, param="a\udfff")
    assert len(error.message.encode()) < 5000
    assert error.message.startswith("\\ud800x")
    assert error.param == "a\\udfff"
    assert str(error.copy()) == error.message


@pytest.mark.parametrize("path", ["/a" * 2500, "/" + "a" * 300, "a\0b", "a\ud800"])
def test_paths_that_no_file_system_has_are_refused(path: str) -> None:
    check_path("/" + "a" * 255 + "/é", "lora_path")
    with pytest.raises(InvalidRequestError, match=r"^lora_path "):
        check_path(path, "lora_path")
