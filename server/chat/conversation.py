"""Conversations with calls and their results, checked and as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxserve.errors import InvalidRequestError
from jaxserve.types import ChatMessage
from jaxserve.untrusted import check_json


def call(call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call as templates take it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def arguments_of(text: str, path: str) -> dict[str, Any]:
    """The arguments of a call that a client sends back as text. Raises InvalidRequestError unless they are a JSON object."""
    try:
        value = json.loads(text) if text.strip() else {}
        check_json(value, text, path, any_size=True)
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{path} must be the JSON text of an object: {error}", param=path) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{path} must be the JSON text of an object", param=path)
    return value


def with_reasoning(message: ChatMessage, reasoning: str | None) -> ChatMessage:
    """The same with what the assistant thought, under every name that templates have for it."""
    if reasoning:
        message["reasoning"] = message["reasoning_content"] = message["thinking"] = reasoning
    return message


def match_results(messages: Sequence[ChatMessage], paths: Sequence[str]) -> None:
    """Give every result of a tool the name of its call, which some templates write.

    Args:
        paths: what the client calls the field of each message that says which call it answers.

    Raises InvalidRequestError for one that answers no call that came before.
    """
    names: dict[str, str] = {}
    for message, path in zip(messages, paths, strict=True):
        for made in message.get("tool_calls", ()):
            names[made["id"]] = made["function"]["name"]
        if message["role"] != "tool":
            continue
        answered = message.get("tool_call_id")
        if answered is None or answered not in names:
            raise InvalidRequestError(f"{path} must be the id of a call of a message before, got {answered!r:.80}", param=path)
        message.setdefault("name", names[answered])
