"""Shapes of what the HTTP surface answers: plain dicts, so that a streamed token costs one dict and one encode."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

Reason = Literal["stop", "length"]


class PromptTokensDetails(TypedDict):
    """More about the prompt's tokens."""

    cached_tokens: int


class UsageReply(TypedDict):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AlternativeReply(TypedDict):
    """A token that could stand at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatPositionReply(AlternativeReply):
    """The token that stands at a position, and its likeliest alternatives."""

    top_logprobs: list[AlternativeReply]


class ChatLogprobsReply(TypedDict):
    """Log-probabilities of a chat choice."""

    content: list[ChatPositionReply]


class CompletionLogprobsReply(TypedDict):
    """Log-probabilities of a text choice: one entry a token in each list."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptTokenReply(TypedDict):
    """A token at a prompt position."""

    logprob: float
    rank: int
    decoded_token: str


# One entry a prompt position (none for the first): token id, as a string, to what is known of it.
PromptLogprobsReply = list[dict[str, PromptTokenReply] | None]


class MessageReply(TypedDict):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoiceReply(TypedDict):
    """One of the n answers."""

    index: int
    message: MessageReply
    logprobs: ChatLogprobsReply | None
    finish_reason: Reason
    token_ids: NotRequired[list[int]]


class ChatReply(TypedDict):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoiceReply]
    usage: UsageReply
    service_tier: NotRequired[str]
    prompt_logprobs: NotRequired[PromptLogprobsReply]
    prompt_token_ids: NotRequired[list[int]]


class ChatDeltaReply(TypedDict):
    """What a chunk adds to the message."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoiceReply(TypedDict):
    """What a chunk adds to one of the n answers."""

    index: int
    delta: ChatDeltaReply
    logprobs: ChatLogprobsReply | None
    finish_reason: Reason | None
    prompt_logprobs: NotRequired[PromptLogprobsReply]
    token_ids: NotRequired[list[int]]


class CompletionChoiceReply(TypedDict):
    """One of the n texts of one of the prompts, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobsReply | None
    finish_reason: Reason | None
    prompt_logprobs: NotRequired[PromptLogprobsReply]
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]


class CompletionReply(TypedDict):
    """A whole text completion, or a chunk of one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoiceReply]
    usage: NotRequired[UsageReply | None]
    service_tier: NotRequired[str]


class ModelReply(TypedDict):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelListReply(TypedDict):
    """The served models."""

    object: Literal["list"]
    data: list[ModelReply]


class TokenizeReply(TypedDict):
    """Tokens, and their own texts if wanted."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(TypedDict):
    """The text of tokens."""

    prompt: str


class TokenizerInfoReply(TypedDict):
    """The tokenizer, its special tokens (text to id) and the chat template (Jinja)."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_id: int | None
    special_tokens: dict[str, int]
    chat_template: str | None


class HealthReply(TypedDict):
    """The server accepts requests."""

    status: Literal["ok"]


class DeepHealthReply(TypedDict):
    """A token was made, in so many seconds, so many seconds ago."""

    status: Literal["ok"]
    seconds: float
    age: float


class VersionReply(TypedDict):
    """The server's version."""

    version: str
