"""Small types shared by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NotRequired

from typing_extensions import TypedDict

TokenIds = Sequence[int]


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # end-of-sequence token, a stop token id or a stop string
    LENGTH = "length"  # max_tokens or the context limit
    ABORT = "abort"  # the client went away or asked for it


class ServiceClass(StrEnum):
    """What a request is promised; in order of precedence."""

    INTERACTIVE_PAID = "interactive_paid"
    INTERACTIVE_FREE = "interactive_free"
    BATCH = "batch"  # no latency promised: gives way to the others


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Whose request it is and what it may take. But for `adapter`, nothing here changes a token of its output.

    Attributes:
        tenant: who pays: fairness, quotas and the prefix cache are kept by tenant.
        service_class: its precedence; None takes the engine's default.
        queue_timeout: seconds it may wait for its first step, above 0; None takes its class's.
        timeout: seconds it may take in all, above 0; None takes its class's.
        max_total_tokens: prompt and output tokens of all its sequences together; None takes its class's. Outputs share equally
            what the prompt leaves.
        cache_salt: only requests of the tenant with the same salt share cached prefixes.
        shows_markup: whether special tokens that mark thinking and tool calls are text, for who takes the text apart.
        adapter: name of the adapter (LoRA) that computes it; empty for the model as it is.
        of_list: whether it belongs to a list of prompts whose first came before: an overload refuses none of those.
    """

    tenant: str = ""
    service_class: ServiceClass | None = None
    queue_timeout: float | None = None
    timeout: float | None = None
    max_total_tokens: int | None = None
    cache_salt: str = ""
    shows_markup: bool = False
    adapter: str = ""
    of_list: bool = False


class OwnTokenIds(list[int]):
    """Token ids that the served model's tokenizer made: nobody need look whether each is one."""


class TokensPrompt(TypedDict):
    """A prompt given as token ids.

    Attributes:
        output_token_ids: tokens of its output that there are already, as a partial rollout left them: it goes on behind them, at
            their positions and with the samples of its seed, and the output contains them.
    """

    prompt_token_ids: list[int]
    output_token_ids: NotRequired[list[int]]


class TextPrompt(TypedDict):
    """A prompt given as text; special tokens such as BOS are added as the checkpoint's tokenizer does."""

    prompt: str


MASK_BITS = 32  # tokens that a word of a mask says may be chosen or not

Prompt = str | TextPrompt | TokensPrompt


class ChatMessage(TypedDict):
    """One message of a conversation, in OpenAI's shape (text content only), as chat templates take it.

    Attributes:
        content: a text, or text parts.
        tool_calls: of the assistant; arguments are objects, not their text.
        tool_call_id: of a tool: which call it answers.
        reasoning, reasoning_content, thinking: of the assistant; the same text under the names that templates have for it.
    """

    role: str
    content: str | list[dict[str, Any]]
    name: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    thinking: NotRequired[str]


def text_of(message: ChatMessage) -> str:
    """A message's content as one text: text parts stand on lines of their own."""
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
