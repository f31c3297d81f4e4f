"""Context tiers: the few lengths of prompts that metrics tell apart, for a long prompt's first token may take longer."""

from __future__ import annotations

from bisect import bisect_left

_BOUNDS = (1024, 4096, 16384, 65536)  # tokens
TIERS = ("1k", "4k", "16k", "64k", "over_64k")


def context_tier(prompt_tokens: int) -> str:
    """The tier of a prompt: the first whose bound it does not exceed ("1k": up to 1,024 tokens)."""
    return TIERS[bisect_left(_BOUNDS, prompt_tokens)]
