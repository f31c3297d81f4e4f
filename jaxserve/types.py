"""Small types shared by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NotRequired, TypedDict

TokenIds = Sequence[int]


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # end-of-sequence token, a stop token id or a stop string
    LENGTH = "length"  # max_tokens or the context limit
    ABORT = "abort"  # the client went away or asked for it


class TokensPrompt(TypedDict):
    """A prompt given as token ids."""

    prompt_token_ids: list[int]


class TextPrompt(TypedDict):
    """A prompt given as text; special tokens such as BOS are added as the checkpoint's tokenizer does."""

    prompt: str


Prompt = str | TextPrompt | TokensPrompt


class ChatMessage(TypedDict):
    """One message of a conversation, in OpenAI's shape (text content only)."""

    role: str
    content: str
    name: NotRequired[str]
