"""Tools reach chat templates with the client's members, in their order, and nothing that it did not write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.http.responses.tools import FlatToolFields
from server.http.tools import ToolFields

SCHEMA = {"properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "type": "object", "x-kept": [1]}
FUNCTIONS: list[dict[str, Any]] = [
    {"name": "bare"},
    {"parameters": SCHEMA, "strict": True, "name": "turned", "description": "what it does"},
    {"name": "more", "description": None, "parameters": {}, "returns": {"type": "string"}},
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function["name"])
def test_of_chat_completions(function: dict[str, Any]) -> None:
    given = {"function": function, "type": "function", "cache_control": {"type": "ephemeral"}}
    read = ToolFields.model_validate_json(json.dumps({"tools": [given]})).asked_tools()
    assert json.dumps(read.tools) == json.dumps([given])


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function["name"])
def test_of_responses_which_are_flat(function: dict[str, Any]) -> None:
    read = FlatToolFields.model_validate_json(json.dumps({"tools": [{"type": "function", **function}]})).asked_tools()
    assert json.dumps(read.tools) == json.dumps([{"type": "function", "function": function}])
