"""Bodies of chat and text completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from jaxserve.sampling.params import MAX_LOGPROBS
from server.http.conversation import Messages
from server.http.fields import ONE_END, SharedFields, TokenList, told
from server.http.numbers import Integer
from server.http.tools import ThinkingFields, ToolFields
from server.http.unions import described
from server.requests import MAX_PROMPTS

_Text = Annotated[str, Field(json_schema_extra={"minLength": 1})]
_SOME = Field(fail_fast=True, json_schema_extra={"minItems": 1, "maxItems": MAX_PROMPTS})
PromptField = Annotated[
    _Text
    | Annotated[list[_Text], _SOME]
    | Annotated[TokenList, Field(json_schema_extra={"minItems": 1})]
    | Annotated[list[Annotated[TokenList, Field(json_schema_extra={"minItems": 1})]], _SOME],
    described("a string, a list of strings, a list of token ids or a list of lists of token ids"),
]


class ChatRequest(SharedFields, ToolFields, ThinkingFields):
    """Body of POST /v1/chat/completions."""

    model_config = ConfigDict(
        json_schema_extra={
            **ONE_END,
            "examples": [
                {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "max_tokens": 16},
                {
                    "messages": [{"role": "user", "content": "What is 1234 * 56?"}],
                    "tools": [
                        {
                            "type": "function",
                            "function": {
                                "name": "calculator",
                                "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
                            },
                        }
                    ],
                    "tool_choice": "auto",
                },
                {
                    "messages": [
                        {"role": "developer", "content": "Answer in one word."},
                        {"role": "user", "content": [{"type": "text", "text": "Sort: pear, fig, apple"}]},
                    ],
                    "max_completion_tokens": 16,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
            ],
        }
    )

    messages: Messages
    max_completion_tokens: Integer | None = told("the newer name of max_tokens, which it goes before", minimum=0)
    logprobs: bool | None = Field(None, description="log-probabilities of the output's tokens")
    top_logprobs: Integer | None = told(
        "and of so many alternatives; without effect where logprobs is false", minimum=0, maximum=MAX_LOGPROBS
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="further variables of the chat template")
    add_generation_prompt: bool | None = Field(None, description="open the assistant's turn, which is the default")
    continue_final_message: bool | None = Field(None, description="go on with the last message instead of answering it")

    def with_logprobs(self) -> bool:
        return bool(self.top_logprobs) if self.logprobs is None else self.logprobs


class CompletionRequest(SharedFields):
    """Body of POST /v1/completions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "17 + 25 =", "temperature": 0, "max_tokens": 8},
                {"prompt": [[1, 2, 3], [4, 5]], "echo": True, "logprobs": 1, "max_tokens": 1},
            ]
        }
    )

    prompt: PromptField = Field(description="one prompt, or at most 1024 of them")
    max_tokens: Integer | None = told(
        "tokens of an output at most, 16 by default; 0 only with echo or prompt_logprobs", minimum=0
    )
    echo: bool | None = Field(None, description="begin the text with the prompt; max_tokens may then be 0")
    logprobs: Integer | None = told(
        "log-probabilities of each token, and of so many alternatives", minimum=0, maximum=MAX_LOGPROBS
    )
    add_special_tokens: bool | None = Field(None, description="begin a text prompt with BOS and the like, which is the default")
