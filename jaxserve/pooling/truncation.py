"""Texts that are cut to a number of tokens, as models that pool are trained: their beginnings stay, and what a tokenizer adds."""

from __future__ import annotations

from collections.abc import Sequence


def truncated(tokens: Sequence[int], plain: Sequence[int], limit: int) -> list[int]:
    """At most `limit` tokens of a text.

    Args:
        tokens: of the text, with what the tokenizer adds before and behind it.
        plain: of the text alone.
        limit: at least 1.
    """
    if len(tokens) <= limit:
        return list(tokens)
    added = len(tokens) - len(plain)
    before = next((start for start in range(added + 1) if list(tokens[start : start + len(plain)]) == list(plain)), None)
    if before is None or added >= limit:
        return list(tokens[:limit])
    behind = tokens[before + len(plain) :]
    return [*tokens[: limit - len(behind)], *behind]
