"""Parameters that clients know and this server cannot honour yet: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic_core import PydanticCustomError

# Name -> values that ask for nothing beyond what is done anyway. null always asks for nothing.
COMMON: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "bad_words": ([],),
        "best_of": (),  # checked against n before it gets here
        "detokenize": (True,),
        "guided_choice": (),
        "guided_decoding_backend": (),
        "guided_grammar": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_whitespace_pattern": (),
        "kv_transfer_params": (),
        "length_penalty": (1, 1.0),
        "logits_processors": ([],),
        "lora_adapter": (),
        "priority": (0,),
        "response_format": ({"type": "text"},),
        "spaces_between_special_tokens": (True,),
        "structured_outputs": (),
        "thinking_token_budget": (),
        "use_beam_search": (False,),
        "vllm_xargs": ({},),
    }
)
CHAT: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        **COMMON,
        "add_special_tokens": (False,),
        "audio": (),
        "chat_template": (),
        "documents": ([],),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "include_reasoning": (True, False),  # there is none, either way
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
        "modalities": (["text"],),
        "moderation": (),
        "parallel_tool_calls": (True, False),  # without tools, either way
        "prediction": (),
        "reasoning": (),
        "reasoning_effort": ("none",),
        "store": (False,),
        "tool_choice": ("none",),
        "tools": ([],),
        "verbosity": (),
        "web_search_options": (),
    }
)
COMPLETIONS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        **COMMON,
        "prompt_embeds": (),
        "suffix": ("",),
    }
)
_OTHERS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        **COMMON,
        "add_special_tokens": (False,),
        "chat_template": (),
        "documents": ([],),
        "echo": (False,),
        "n": (1,),
        "prompt_logprobs": (),
        "prompt_logprobs_start": (),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "truncate_prompt_tokens": (),
    }
)
MESSAGES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        **_OTHERS,
        "container": (),
        "context_management": (),
        "logprobs": (False,),
        "mcp_servers": ([],),
        "output_config": ({},),
        "output_format": (),
        "speed": ("standard",),
        "stop": ([],),
        "thinking": ({"type": "disabled"},),
        "tool_choice": ({"type": "none"},),
        "tools": ([],),
        "top_logprobs": (),
    }
)
RESPONSES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        **_OTHERS,
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "logprobs": (False,),
        "max_tool_calls": (),
        "moderation": (),
        "parallel_tool_calls": (True, False),  # without tools, either way
        "previous_response_id": (),
        "prompt": (),
        "reasoning": ({}, {"effort": "none"}),
        "store": (False,),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "truncation": ("disabled",),
    }
)
TOKENIZE_CHAT: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "add_special_tokens": (False,),  # the template writes them
        "chat_template": (),
        "mm_processor_kwargs": ({},),
        "tools": ([],),
    }
)
MESSAGE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "audio": (),
        "function_call": (),
        "reasoning_content": (),
        "refusal": (),
        "tool_call_id": (),
        "tool_calls": ([],),
    }
)


def refuse(body: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise PydanticCustomError naming the first parameter of `table` that asks for something."""
    for name, harmless in table.items():
        value = body.get(name)
        if value is None or value in harmless:
            continue
        if name == "best_of" and value == (1 if body.get("n") is None else body["n"]):
            continue
        raise PydanticCustomError("not_supported", "is not supported by this server yet", {"param": name})
