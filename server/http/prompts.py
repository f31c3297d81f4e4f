"""From a body's prompt field to the engine's prompts: one or several, cut to a length, named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.types import Prompt, TokensPrompt
from server.requests import MAX_PROMPTS, TextOrIds, check_not_empty
from server.tokenizing import truncated


def prompts_in(given: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]], param: str = "prompt") -> list[TextOrIds]:
    """The prompts, of which the field may hold one or several. Raises InvalidRequestError for an empty one, or too many."""
    check_not_empty(given, param)
    if isinstance(given, str) or isinstance(given[0], int):
        return [cast(TextOrIds, given)]
    if len(given) > MAX_PROMPTS:
        raise InvalidRequestError(f"{param} must hold at most {MAX_PROMPTS} prompts, got {len(given)}", param=param)
    several = cast(list[TextOrIds], given)
    for index, prompt in enumerate(several):
        check_not_empty(prompt, f"{param}[{index}]")
    return several


async def tokenized(client: EngineClient, prompt: TextOrIds, *, add_special_tokens: bool, truncates: bool = False) -> list[int]:
    """The prompt's tokens; only texts get BOS and the like. Of one that is truncated, those at its end."""
    if isinstance(prompt, str):
        last = client.model.max_model_len if truncates else None
        return await client.encode(prompt, add_special_tokens=add_special_tokens, last=last)
    return prompt


def cut(client: EngineClient, tokens: Sequence[int], limit: int, output: int | None) -> list[int]:
    """The end of a prompt that leaves room for `output` more tokens, as truncate_prompt_tokens asks.

    Raises InvalidRequestError.
    """
    return truncated(client, tokens, limit, output, "truncate_prompt_tokens")


def tokens_of(prompt: Prompt) -> list[int]:
    return cast(TokensPrompt, prompt)["prompt_token_ids"]
