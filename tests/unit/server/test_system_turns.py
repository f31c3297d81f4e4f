"""System messages inside a conversation, for chat templates that know none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.types import ChatMessage, Prompt, text_of
from server.chat.system_turns import folded, with_system_turns
from tests.support.scripted import ScriptedClient


def messages(text: str) -> list[ChatMessage]:
    """From ``u:hi s:terse``: roles by their first letter."""
    roles = {"u": "user", "s": "system", "a": "assistant", "t": "tool"}
    return [{"role": roles[one[0]], "content": one[2:]} for one in text.split()]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("s:1 u:2 a:3", "s:1 u:2 a:3"),
        ("s:1 s:2 u:3", "s:1\n\n2 u:3"),
        ("u:1 s:2", "u:1\n\n2"),
        ("u:1 s:2 s:3 a:4 u:5", "u:1\n\n2\n\n3 a:4 u:5"),
        ("u:1 a:2 s:3 u:4", "u:1 a:2 u:3\n\n4"),
        ("u:1 a:2 t:3 s:4", "u:1 a:2 t:3 u:4"),
        ("u:1 a:2 t:3 s:4 s:5 a:6 s:7", "u:1 a:2 t:3 u:4\n\n5 a:6 u:7"),
    ],
)
def test_folded(given: str, taken: str) -> None:
    assert folded(messages(given)) == [{**one, "content": one["content"]} for one in parsed(taken)]


def parsed(text: str) -> list[ChatMessage]:
    return [{**one, "content": text_of(one).replace("|", "\n\n")} for one in messages(text.replace("\n\n", "|"))]


class Templated(ScriptedClient):
    """Its template writes all messages, or those that are not of the system, or refuses such inside a conversation."""

    how = "all"

    async def render_chat(self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any]) -> Prompt:
        inside = [one for one in messages[1:] if one["role"] == "system"]
        if inside and self.how == "refuses":
            raise InvalidRequestError("system must come first", param="messages")
        shown = [text_of(one) for one in messages if self.how == "all" or one not in inside]
        return {"prompt_token_ids": self.tokenizer.encode("".join(shown))}


@pytest.mark.parametrize(("how", "kept"), [("all", True), ("drops", False), ("refuses", False)])
async def test_they_stay_where_the_template_writes_them(how: str, kept: bool) -> None:
    client = Templated()
    client.how = how
    given = messages("u:1 s:2 a:3 u:4")
    assert await with_system_turns(client, given) == (given if kept else folded(given))
