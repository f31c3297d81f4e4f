"""Shapes of what the HTTP surface answers: plain dicts, so that a streamed token costs one dict and one encode."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

Reason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(TypedDict):
    """More about the prompt's tokens."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """More about the output's tokens."""

    reasoning_tokens: int


class UsageReply(TypedDict):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]
    resumed: NotRequired[int]


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


class TokenLogprobReply(TypedDict):
    """A token that could stand at a position."""

    token_id: int
    logprob: float
    rank: int


class TokenPositionReply(TokenLogprobReply):
    """The token that stands at a position, and the likeliest there."""

    top_logprobs: list[TokenLogprobReply]


class TokenLogprobsReply(TypedDict):
    """Log-probabilities of an output that is told in tokens."""

    content: list[TokenPositionReply]


class PromptTokenReply(TypedDict):
    """A token at a prompt position."""

    logprob: float
    rank: int
    decoded_token: str


# One entry a prompt position (none for the first): token id, as a string, to what is known of it.
PromptLogprobsReply = list[dict[str, PromptTokenReply] | None]


class CalledFunctionReply(TypedDict):
    """The function that is called, and the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCallReply(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunctionReply


class MessageReply(TypedDict):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[Annotated[str, Field(description="what was thought before the answer")]]
    reasoning_content: NotRequired[Annotated[str, Field(description="reasoning, for older clients")]]
    tool_calls: NotRequired[list[ToolCallReply]]


class WeightRangeReply(TypedDict):
    """Tokens of an answer that are of one version of the weights."""

    version: Annotated[int | str, Field(description='of the weights; "default" if those had no name')]
    start: Annotated[int, Field(description="the first of the tokens, counted from 0")]
    end: Annotated[int, Field(description="the one behind the last")]


class VersionsReply(TypedDict, total=False):
    """What a choice says of the weights, if they have versions."""

    weight_versions: list[WeightRangeReply]


class ChatChoiceReply(TypedDict):
    """One of the n answers."""

    index: int
    message: MessageReply
    logprobs: ChatLogprobsReply | None
    finish_reason: Reason
    token_ids: NotRequired[list[int]]
    weight_versions: NotRequired[list[WeightRangeReply]]


class ChatReply(TypedDict):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoiceReply]
    usage: UsageReply
    service_tier: NotRequired[str]
    prompt_logprobs: NotRequired[PromptLogprobsReply]
    prompt_token_ids: NotRequired[list[int]]


class CalledFunctionDeltaReply(TypedDict):
    """The function's name, at first, and the next piece of its arguments."""

    name: NotRequired[str]
    arguments: str


class ToolCallDeltaReply(TypedDict):
    """What a chunk adds to one of the calls."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunctionDeltaReply


class ChatDeltaReply(TypedDict):
    """What a chunk adds to the message."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDeltaReply]]


class ChatChunkChoiceReply(TypedDict):
    """What a chunk adds to one of the n answers."""

    index: int
    delta: ChatDeltaReply
    logprobs: ChatLogprobsReply | None
    finish_reason: Reason | None
    prompt_logprobs: NotRequired[PromptLogprobsReply]
    token_ids: NotRequired[list[int]]
    weight_versions: NotRequired[list[WeightRangeReply]]


class CompletionChoiceReply(TypedDict):
    """One of the n texts of one of the prompts, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobsReply | None
    finish_reason: Reason | None
    prompt_logprobs: NotRequired[PromptLogprobsReply]
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]
    weight_versions: NotRequired[list[WeightRangeReply]]


class CompletionReply(TypedDict):
    """A whole text completion, or a chunk of one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChoiceReply]
    usage: NotRequired[UsageReply | None]
    service_tier: NotRequired[str]


class ModelReply(TypedDict):
    """A served model, or an adapter over one: `root` is then its directory, and `parent` the model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    root: NotRequired[str]
    parent: NotRequired[str]


class AdapterReply(TypedDict):
    """An adapter that requests may name."""

    lora_name: str
    lora_path: str
    base_model_name: str | None
    rank: int
    modules: int
    tenant: str | None
    pinned: bool


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


class LoadReply(TypedDict):
    """The engine's load now."""

    server_load: Annotated[int, Field(description="requests that have not ended")]
    running: Annotated[int, Field(description="sequences that a step computes, of which a request has n")]
    waiting: Annotated[int, Field(description="sequences in the queue")]
    kv_cache_usage: Annotated[float, Field(description="share of the KV cache's pages that is in use, 0 to 1")]


class KVEventSourceReply(TypedDict):
    """Where one engine publishes."""

    data_parallel_rank: Annotated[int, Field(description="of the engine")]
    endpoint: Annotated[str, Field(description="of its PUB socket")]
    replay_endpoint: Annotated[str | None, Field(description="of the ROUTER socket that gives past batches, if there is one")]
    topic: Annotated[str, Field(description="that events are published under")]


class ServerInfoReply(TypedDict):
    """What runs here."""

    version: str
    served_model_name: Annotated[str, Field(description="the name that answers carry")]
    served_model_names: Annotated[list[str], Field(description="the names that requests may use")]
    architecture: Annotated[str, Field(description="Hugging Face's name of the architecture")]
    dtype: Annotated[str, Field(description="dtype of the weights")]
    parameters: Annotated[int, Field(description="number of parameters")]
    vocab_size: Annotated[int, Field(description="number of token ids that the model scores")]
    max_model_len: Annotated[int, Field(description="longest prompt plus output in tokens")]
    created: Annotated[int, Field(description="Unix time at which the engine was started")]
    load: LoadReply


class VersionReply(TypedDict):
    """The server's version."""

    version: str
