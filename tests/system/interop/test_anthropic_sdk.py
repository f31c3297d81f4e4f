"""The anthropic SDK with either of its ways to send a key."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.system.interop.conftest import Gated

SUM: dict[str, Any] = {
    "model": "pico",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "What is 17 + 25?"}],
    "extra_body": {"temperature": 0},
}


@pytest.mark.fleet
@pytest.mark.parametrize("name", ["api_key", "auth_token"])
def test_a_message_whole_and_streamed(pico: Gated, name: str) -> None:
    credentials: dict[str, Any] = {name: pico.keys["acme"]}
    with anthropic.Anthropic(base_url=pico.process.http, **credentials) as claude:
        whole = claude.messages.create(**SUM)
        assert (whole.content[0].to_dict()["text"], whole.stop_reason, whole.usage.output_tokens) == ("42", "end_turn", 3)
        with claude.messages.stream(**SUM) as stream:
            assert "".join(stream.text_stream) == "42"
            final = stream.get_final_message()
        assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 3)


def test_errors_have_types(pico: Gated) -> None:
    with anthropic.Anthropic(base_url=pico.process.http, api_key="sk-wrong") as stranger:
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            stranger.messages.create(**SUM)
        body: Any = wrong.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
        assert wrong.value.request_id
    with anthropic.Anthropic(base_url=pico.process.http, api_key=pico.keys["acme"]) as claude:
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            claude.messages.create(**{**SUM, "max_tokens": 10_000})
        with pytest.raises(anthropic.NotFoundError, match="claude-opus"):
            claude.messages.create(**{**SUM, "model": "claude-opus"})
