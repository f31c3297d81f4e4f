"""Bodies that try to take more than their share: what is refused, and the most that is still allowed. A row an attack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

TEXT, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
BODY_BYTES = 4 * 2**20 - 1024  # as long as a body may be
Kind = Literal["ordinary", "refused", "allowed"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the bodies are made for: the served model's context and vocabulary, and bytes of its longest token."""

    context: int
    vocabulary: int
    token_bytes: int

    @property
    def text_bytes(self) -> int:
        """The longest text that may fit the context."""
        return (self.context + 1) * self.token_bytes

    @property
    def ids(self) -> list[int]:
        """A prompt that leaves room for 32 tokens."""
        return [7 + place % (self.vocabulary - 7) for place in range(self.context - 32)]

    @property
    def words(self) -> str:
        """About the same in text."""
        return "the cat sat " * (self.context // 8)


@dataclass(frozen=True, slots=True)
class Attack:
    """What attackers send again and again.

    Attributes:
        name: in the table of results.
        kind: "ordinary" is what honest clients do, for comparison; "refused" goes beyond a bound, "allowed" up to it.
        path: where to.
        body: of a model's facts.
    """

    name: str
    kind: Kind
    path: str
    body: Callable[[Facts], Mapping[str, Any]]

    def encoded(self, facts: Facts) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.body(facts), separators=(",", ":")).encode()


def _messages(count: int) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": "x"} for place in range(count)]


ATTACKS = (
    Attack("ordinary clients", "ordinary", TEXT, lambda m: {"prompt": m.words[:256], "max_tokens": 32}),
    Attack(
        "ordinary clients that fill the engine's rows", "ordinary", TEXT, lambda m: {"prompt": "hi", "n": 8, "max_tokens": 64}
    ),
    Attack(
        "clients with long prompts",
        "ordinary",
        TEXT,
        lambda m: {"prompt": [[place, *m.ids] for place in range(7, 31)], "max_tokens": 1},
    ),
    Attack(
        "16 stop strings of 60 kB, n 128",
        "refused",
        TEXT,
        lambda m: {"prompt": "hi", "stop": [str(n) * 60_000 for n in range(16)], "n": 128, "max_tokens": 16},
    ),
    Attack(
        "1,000 prompts, prompt_logprobs 20",
        "refused",
        TEXT,
        lambda m: {"prompt": [m.words] * 1000, "prompt_logprobs": 20, "max_tokens": 1},
    ),
    Attack("a prompt of 14 MiB", "refused", TEXT, lambda m: {"prompt": "word " * (14 * 2**20 // 5), "max_tokens": 1}),
    Attack(
        "a million allowed_token_ids",
        "refused",
        TEXT,
        lambda m: {"prompt": "hi", "allowed_token_ids": [9] * 1_000_000, "max_tokens": 1},
    ),
    Attack("1,024 prompts, n 128", "refused", TEXT, lambda m: {"prompt": ["a"] * 1024, "n": 128, "max_tokens": 1}),
    Attack(
        "16 stop strings of 256 characters, n 128",
        "allowed",
        TEXT,
        lambda m: {"prompt": "hi", "stop": ["ab" * 127 + f"{n:02}" for n in range(16)], "n": 128, "max_tokens": 64},
    ),
    Attack("n 128, all of the context", "allowed", CHAT, lambda m: {"messages": _messages(1), "n": 128}),
    Attack("1,024 prompts", "allowed", TEXT, lambda m: {"prompt": ["the cat sat"] * 1024, "max_tokens": 16}),
    Attack(
        "prompt_logprobs 20 of as many prompts as may be",
        "allowed",
        TEXT,
        lambda m: {"prompt": [m.ids] * (524_288 // 21 // m.context), "prompt_logprobs": 20, "max_tokens": 1},
    ),
    Attack(
        "the same, streamed",
        "allowed",
        TEXT,
        lambda m: {"prompt": [m.ids] * (524_288 // 21 // m.context), "prompt_logprobs": 20, "max_tokens": 1, "stream": True},
    ),
    Attack(
        "logprobs 20, n 128, as many tokens as may be",
        "allowed",
        TEXT,
        lambda m: {"prompt": "hi", "logprobs": 20, "n": 128, "max_tokens": min(524_288 // 21 // 128, m.context - 8)},
    ),
    Attack(
        "32,768 allowed_token_ids",
        "allowed",
        TEXT,
        lambda m: {"prompt": "hi", "allowed_token_ids": [9] * 32_768, "max_tokens": 1},
    ),
    Attack("the longest text", "allowed", TEXT, lambda m: {"prompt": "é" * (m.text_bytes // 2), "max_tokens": 1}),
    Attack("the longest text, to tokenize", "allowed", TOKENIZE, lambda m: {"prompt": "é" * (m.text_bytes // 2)}),
    Attack(
        "a body full of text, truncated",
        "allowed",
        TEXT,
        lambda m: {"prompt": "é" * (BODY_BYTES // 6), "truncate_prompt_tokens": 4, "max_tokens": 1},
    ),
    Attack(
        "a body full of long texts, truncated",
        "allowed",
        TEXT,
        lambda m: {
            "prompt": ["word " * (m.text_bytes // 5)] * min(BODY_BYTES // m.text_bytes, 1024),
            "truncate_prompt_tokens": 4,
            "max_tokens": 1,
        },
    ),
    Attack(
        "token ids, as many as are read",
        "allowed",
        TEXT,
        lambda m: {"prompt": [m.ids] * min(500_000 // m.context, 1024), "max_tokens": 1},
    ),
    Attack("4,096 messages", "allowed", CHAT, lambda m: {"messages": _messages(4096), "max_tokens": 1}),
)
