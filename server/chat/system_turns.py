"""System messages inside a conversation. Chat templates without them get the text as part of other messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jaxserve.engine.client import EngineClient
from jaxserve.errors import JaxserveError
from jaxserve.types import ChatMessage, TokensPrompt, text_of

_SIGN = "Be kind to snails."
_PROBE: Sequence[ChatMessage] = (
    {"role": "user", "content": "1"},
    {"role": "system", "content": _SIGN},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "3"},
)


async def with_system_turns(client: EngineClient, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The conversation as the chat template takes it: unchanged if it writes system messages wherever they are."""
    inside = any(message["role"] == "system" for message in messages[1:])
    return folded(messages) if inside and not await _are_written(client) else messages


def folded(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The conversation with no system message but the first: the text of others ends the user's message before, or begins the
    next one, or is a message of the user's.
    """
    kept: list[ChatMessage] = []
    waiting: list[str] = []  # texts for the user's next message
    for message in messages:
        if message["role"] == "system" and kept:
            if not waiting and kept[-1]["role"] in ("user", "system"):
                kept[-1] = _joined(kept[-1], text_of(kept[-1]), text_of(message))
            else:
                waiting.append(text_of(message))
            continue
        if waiting and message["role"] == "user":
            message, waiting = _joined(message, *waiting, text_of(message)), []
        elif waiting:
            kept.append({"role": "user", "content": "\n\n".join(waiting)})
            waiting = []
        kept.append(message)
    return [*kept, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else kept


def _joined(message: ChatMessage, *texts: str) -> ChatMessage:
    return cast(ChatMessage, {**message, "content": "\n\n".join(filter(None, texts))})


async def _are_written(client: EngineClient) -> bool:
    try:
        prompt = await client.render_chat(_PROBE, {"add_generation_prompt": True})
    except JaxserveError:
        return False
    return _SIGN in client.tokenizer.decode(cast(TokensPrompt, prompt)["prompt_token_ids"], skip_special_tokens=False)
