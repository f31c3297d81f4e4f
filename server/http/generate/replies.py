"""What POST /inference/v1/generate answers, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from server.http.generate.protocol import OutputMode
from server.http.replies import ChatLogprobsReply, PromptLogprobsReply, TokenLogprobsReply, UsageReply, WeightRangeReply

GenerateReason = Literal["stop", "length", "abort"]


class GenerateChoiceReply(TypedDict):
    """One of the n outputs, or what a chunk adds to it."""

    index: int
    token_ids: Annotated[list[int], Field(description="the tokens, with an end-of-sequence or stop token that ended them")]
    text: NotRequired[str]
    logprobs: TokenLogprobsReply | ChatLogprobsReply | None
    finish_reason: GenerateReason | None
    weight_versions: NotRequired[list[WeightRangeReply]]


class GenerateReply(TypedDict):
    """A whole answer, or a chunk of one."""

    request_id: str
    created: NotRequired[int]
    model: NotRequired[str]
    output_mode: OutputMode
    choices: list[GenerateChoiceReply]
    usage: NotRequired[UsageReply | None]
    prompt_logprobs: NotRequired[PromptLogprobsReply | None]
    prompt_token_ids: NotRequired[list[int] | None]
