from typing import Any

import pytest

from jaxserve.chat_parsing import Tool, ToolChoice, read_tools, resolve_tool_choice
from jaxserve.errors import InvalidRequestError

A, B = Tool("a", {}), Tool("b", {"type": "object"})


def test_tools_of_both_surfaces() -> None:
    chat = {"type": "function", "function": {"name": "a", "parameters": None}}
    responses = {"type": "function", "name": "b", "parameters": {"type": "object"}, "strict": True}
    assert read_tools([chat, responses]) == (A, B)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        (["a"], "tools[0]"),
        ([{"type": "web_search"}], "tools[0]"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "function": 3}], "tools[0].function.name"),
        ([{"name": "a"}, {"name": "a b"}], "tools[1].name"),
        ([{"name": "a"}, {"name": "a"}], "tools[1].name"),
        ([{"name": "a", "parameters": [1]}], "tools[0].parameters"),
    ],
)
def test_a_bad_tool_is_refused_by_its_field(tools: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_tools(tools)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice((A, B), parallel=False)),
        ("auto", ToolChoice((A, B), parallel=False)),
        ("none", ToolChoice(())),
        ("required", ToolChoice((A, B), required=True, parallel=False)),
        ({"type": "function", "function": {"name": "b"}}, ToolChoice((B,), required=True, parallel=False)),
        ({"type": "function", "name": "b"}, ToolChoice((B,), required=True, parallel=False)),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "b"}}]},
            },
            ToolChoice((B,), parallel=False),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}, {"name": "a"}]},
            ToolChoice((B, A), required=True, parallel=False),
        ),
    ],
)
def test_choices_of_both_surfaces(choice: Any, expected: ToolChoice) -> None:
    assert resolve_tool_choice([A, B], choice, parallel=False) == expected


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([A], "any", "must be auto, none"),
        ([A], {"type": "function"}, "must be auto, none"),
        ([A], {"type": "allowed_tools", "mode": "never", "tools": []}, "must be auto, none"),
        ([A], {"type": "function", "name": "b"}, "names 'b', which is not in tools"),
        ([A], {"type": "allowed_tools", "mode": "auto", "tools": [3]}, "names None"),
        ([A], {"type": "allowed_tools", "mode": "auto", "tools": [{"name": []}]}, r"names \[\]"),
        ([A], {"type": "allowed_tools", "mode": "auto", "tools": []}, "there are no tools"),
        ([], "required", "there are no tools"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(tools: list[Tool], choice: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        resolve_tool_choice(tools, choice)
    assert refused.value.param == "tool_choice"
