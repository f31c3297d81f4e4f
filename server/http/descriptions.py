"""What the API's document says of fields whose own declaration says nothing: most of answers, which are plain typed dicts.

A name means the same in most shapes; where it does not, the shape's own text goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_COMMON: Mapping[str, str] = MappingProxyType(
    {
        "after": "the id that ended the last page",
        "annotations": "always empty",
        "batch_id": "the batch's id",
        "bytes": "the token's bytes; a character may be spread over several tokens",
        "cached_tokens": "those of them that were in the prefix cache",
        "chat_template": "the model's chat template, a Jinja text; null if it has none",
        "choices": "one entry a sequence, in order of prompts, then of samples",
        "code": "the error's stable code",
        "completion_tokens": "tokens that were generated",
        "content": "the text, whole or in parts; only text is supported",
        "created": "Unix time of the answer, seconds",
        "created_at": "Unix time of its creation, seconds",
        "data": "the entries",
        "error": "what went wrong",
        "file_id": "the file's id",
        "finish_reason": "stop: it ended by itself or at a stop string; length: it reached its longest",
        "first_id": "the first entry's id; null on an empty page",
        "has_more": "whether another page follows",
        "id": "its name, of which there is no other",
        "ignore_eos": "go on after an end-of-sequence token, to the longest that is allowed",
        "include_stop_str_in_output": "leave the stop string that ended the text in it",
        "index": "which of the samples it is, from 0",
        "input": "a text, or the messages of a conversation",
        "input_tokens": "tokens of the prompt",
        "input_tokens_details": "more about them",
        "instructions": "the system's message, as it was sent",
        "last_id": "the last entry's id, with which `after` asks for the next page; null on an empty page",
        "limit": "entries of a page at most",
        "logprob": "natural logarithm of its probability, before sampling parameters change it",
        "logprobs": "log-probabilities of the output's tokens; null if they were not asked for",
        "max_model_len": "tokens of a prompt and its output together at most",
        "message": "for people: the field at fault, its value and its bound",
        "messages": "the conversation, oldest first; at least one",
        "metadata": "notes of the client's own, as they were sent",
        "model": "the served model's name; the only one by default",
        "name": "the model's name",
        "object": "what kind of object this is",
        "output_tokens": "tokens that were generated",
        "output_tokens_details": "more about them",
        "param": "the field at fault, as a path; null where there is none",
        "prompt_logprobs": "one entry a prompt token, null for the first: token ids to what is known of them",
        "prompt_token_ids": "the prompt's tokens, where return_token_ids asks for them",
        "prompt_tokens": "tokens of all prompts; a prompt counts once, however many samples it has",
        "prompt_tokens_details": "more about them",
        "purpose": "what the file is for",
        "reasoning_tokens": "always 0",
        "refusal": "always null",
        "role": "whose message it is",
        "seed": "the same seed, prompt and parameters give the same tokens; random by default",
        "service_class": "the request's precedence; without it that of the API key, or of the server",
        "service_tier": "the tier that was used, if the request named one",
        "skip_special_tokens": "leave special tokens out of the text, which is the default",
        "status": "how it stands",
        "stop": "a text, or several, before which the output ends",
        "stop_token_ids": "tokens at which the output ends",
        "stream_options": "what a stream tells besides the text; without effect on other answers",
        "system": "the system's message, before the others",
        "system_fingerprint": "of the model's weights and configuration, whichever server has it; null where it is not known",
        "text": "the text",
        "token": "the token's text",
        "token_ids": "the output's tokens, where return_token_ids asks for them",
        "tokens": "token ids",
        "top_logprobs": "the likeliest tokens at each position",
        "total_tokens": "both together",
        "type": "what kind of part this is",
        "usage": "token counts",
        "user": "the tag, as it was sent",
        "version": "the server's version",
    }
)

_OF_SHAPE: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "AnthropicErrorBody": {"type": "always error"},
        "AnthropicErrorDetail": {"type": "what kind of error it is, in Anthropic's words"},
        "AnthropicMessage": {"content": "the turn's text, whole or in blocks"},
        "AnthropicMessageReply": {
            "content": "the answer: one block of text",
            "model": "the served model's name",
            "stop_reason": "why the answer ended",
            "stop_sequence": "the stop sequence that ended it, if one did",
        },
        "BatchReply": {
            "cancelled_at": "when it was cancelled",
            "cancelling_at": "when that was asked for",
            "completed_at": "when it was done",
            "completion_window": "how long it may take",
            "endpoint": "the url of its lines",
            "error_file_id": "the file of lines that failed, once there is one",
            "errors": "what is wrong with the input file, if that is why it failed",
            "expired_at": "when its window closed",
            "expires_at": "when its window closes",
            "failed_at": "when it failed",
            "finalizing_at": "when its last line was answered",
            "in_progress_at": "when its first line was asked",
            "input_file_id": "the file of its requests",
            "model": "the served model's name",
            "output_file_id": "the file of answers, once there is one",
            "request_counts": "how many of its lines are answered",
        },
        "BatchRequest": {"output_expires_after": "how long files of answers are kept; by default as long as others"},
        "BatchUsageReply": {"input_tokens": "tokens of all prompts"},
        "ChatChoiceReply": {"message": "the answer"},
        "ChatLogprobsReply": {"content": "one entry a token"},
        "ChatReply": {"model": "the served model's name"},
        "CompletionChoiceReply": {"index": "which of the texts it is: samples of the first prompt come first"},
        "CompletionLogprobsReply": {
            "text_offset": "where each token begins in the text, in characters",
            "token_logprobs": "one entry a token; null for a prompt's first",
            "tokens": "the tokens' texts",
            "top_logprobs": "for each token, the likeliest ones at its place; null for a prompt's first",
        },
        "CompletionReply": {"model": "the served model's name"},
        "CountsReply": {
            "completed": "lines with an answer",
            "failed": "lines with an error",
            "total": "lines of the input file",
        },
        "DeepHealthReply": {
            "age": "seconds since the token was asked for: a fresh one is shared for a while",
            "seconds": "that the token took",
        },
        "DetokenizeReply": {"prompt": "the text"},
        "DetokenizeRequest": {"tokens": "the token ids, in order"},
        "ErrorDetail": {"type": "what kind of error it is, in OpenAI's words"},
        "FileDeletedReply": {"deleted": "always true"},
        "FileReply": {
            "bytes": "the file's length",
            "expires_at": "Unix time at which it is removed, seconds",
            "filename": "what the client called it",
        },
        "FormatReply": {"type": "always text"},
        "HealthReply": {"status": "always ok"},
        "IncompleteReply": {"reason": "always max_output_tokens"},
        "InputMessage": {"type": "always message"},
        "Message": {"content": "the message's text, whole or in parts", "name": "who speaks, for templates that know of it"},
        "MessageReply": {"content": "the answer's text", "role": "always assistant"},
        "MessageUsageReply": {
            "cache_creation_input_tokens": "always 0: what is written to the cache costs nothing",
            "cache_read_input_tokens": "tokens of the prompt that were in the prefix cache",
            "input_tokens": "tokens of the prompt that were not",
        },
        "MessagesRequest": {
            "metadata": "a tag of the client's own, without effect",
            "service_tier": "taken, without effect",
            "stop_sequences": "texts before which the answer ends",
        },
        "Metadata": {"user_id": "the tag"},
        "ModelReply": {
            "created": "Unix time at which the engine was started, seconds",
            "id": "the name that requests use",
            "owned_by": "always jaxserve",
        },
        "OutputExpiresAfter": {"seconds": "how long the file is kept"},
        "OutputMessageReply": {"content": "one part: the text"},
        "PlainFormat": {"type": "always text: other formats are refused"},
        "ProblemReply": {"line": "the line's number, from 1; null if it is the whole file's"},
        "PromptTokenReply": {"decoded_token": "the token's text", "rank": "how many tokens were likelier, and one"},
        "ResponseReply": {
            "background": "always false",
            "error": "always null: what fails is an HTTP error, or an event of the stream",
            "incomplete_details": "why it is not whole, if it is not",
            "max_output_tokens": "as it was sent",
            "model": "the served model's name",
            "output": "one message, once there is one",
            "parallel_tool_calls": "always false",
            "previous_response_id": "always null",
            "reasoning": "always null",
            "store": "always false: nothing is stored",
            "temperature": "with which the answer was sampled",
            "text": "how the answer is written",
            "tool_choice": "always none",
            "tools": "always empty",
            "top_logprobs": "alternatives at each position",
            "top_p": "with which the answer was sampled",
            "truncation": "always disabled: what is too long is refused",
            "usage": "token counts; null until they are known",
        },
        "ResponsesRequest": {"text": "how to write the answer: as plain text"},
        "ServerInfoReply": {"load": "how busy the engine is"},
        "TextConfig": {"format": "only plain text is supported", "verbosity": "only the usual is supported"},
        "TextReply": {"format": "always plain text"},
        "TokenCountReply": {"input_tokens": "tokens of the prompt as the model sees it"},
        "TokenizeChatRequest": {
            "add_generation_prompt": "open the assistant's turn, which is the default",
            "chat_template_kwargs": "further variables of the chat template",
            "continue_final_message": "go on with the last message instead of answering it",
        },
        "TokenizeReply": {
            "count": "how many tokens there are",
            "token_strs": "each token's text, where return_token_strs asks for them",
            "tokens": "their ids",
        },
        "TokenizeTextRequest": {"prompt": "the text"},
        "TokenizerInfoReply": {
            "bos_token": "the token that begins a text; null if there is none",
            "bos_token_id": "its id",
            "eos_token": "the token that ends one; null if there is none",
            "eos_token_id": "its id",
            "model_max_length": "tokens of a prompt and its output together at most",
            "special_tokens": "texts of special tokens to their ids",
            "tokenizer_class": "what reads the tokenizer's files",
            "vocab_size": "number of token ids",
        },
    }
)


def describe(document: dict[str, Any]) -> None:
    """Write a text to every field and parameter of an OpenAPI document that has none and is known here."""
    for name, schema in document["components"]["schemas"].items():
        own = _OF_SHAPE.get(name, {})
        for field, property_ in schema.get("properties", {}).items():
            _write(property_, own.get(field, _COMMON.get(field)))
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                _write(parameter, _COMMON.get(parameter["name"]))


def _write(target: dict[str, Any], text: str | None) -> None:
    if text is not None:
        target.setdefault("description", text)
