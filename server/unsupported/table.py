"""The one table of fields that this server knows of and does not have: those of OpenAI's chat, completions and responses,
Anthropic's messages, vLLM, SGLang, llama.cpp's server and TGI, each with what to do instead.

A field that a surface has itself is never looked up here. null, "", [] and {} ask for nothing, whatever the field.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


class Kind(enum.Enum):
    """What becomes of a field that asks for something."""

    REFUSED = "refused"  # the answer could be another than was asked for
    WARNED = "warned"  # it only flavours what comes
    NO_EFFECT = "no_effect"  # a tag, a hint, or a detail of a field that is refused or warned of itself


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One field.

    Attributes:
        instead: what a client can do; continues a sentence.
        neutral: values that ask for nothing beyond what is done anyway.
        of_prompt: whether it changes the prompt, so that counting its tokens must refuse it too.
    """

    kind: Kind
    instead: str
    neutral: tuple[Any, ...] = ()
    of_prompt: bool = False

    def asks_nothing(self, value: Any) -> bool:
        return _empty(value) or any(_same(value, neutral) for neutral in self.neutral)


def _empty(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_empty(item) for item in value.values())
    return value is None or value in ("", [])


def _same(value: Any, neutral: Any) -> bool:
    """Whether they are equal; what an object says besides does not matter."""
    if isinstance(value, Mapping) and isinstance(neutral, Mapping):
        return all(value.get(name) == wanted for name, wanted in neutral.items())
    return bool(value == neutral)


_Neutral = Mapping[str, tuple[Any, ...]]


def _group(kind: Kind, instead: str, fields: _Neutral, *, of_prompt: bool = False) -> Iterator[tuple[str, Unsupported]]:
    for name, neutral in fields.items():
        yield name, Unsupported(kind, instead, neutral, of_prompt)


def _any(*names: str) -> _Neutral:
    return dict.fromkeys(names, ())


def _refused(instead: str, fields: _Neutral, *, of_prompt: bool = False) -> Iterator[tuple[str, Unsupported]]:
    return _group(Kind.REFUSED, instead, fields, of_prompt=of_prompt)


_EITHER = (True, False)  # there is none, either way
_OFF = (False,)

# The order is that in which fields are named: tools before tool_choice, and some members before all of their object.
FIELDS: Mapping[str, Unsupported] = MappingProxyType(
    dict(
        (
            *_refused(
                "chat completions, responses and messages take tools; functions are tools of the type function there",
                {
                    "tools": (),
                    "functions": (),
                    "tool_choice": ("none", "auto", {"type": "none"}, {"type": "auto"}),  # without tools there is no choice
                    "function_call": ("none", "auto"),
                    "parallel_tool_calls": _EITHER,
                },
                of_prompt=True,
            ),
            *_refused(
                "tools are the client's to run: send those of the type function, and their results",
                {
                    "max_tool_calls": (),
                    "tool_prompt": (),
                    "parse_tool_calls": (True,),
                    "web_search_options": (),
                    "mcp_servers": (),
                    "container": (),
                },
                of_prompt=True,
            ),
            *_refused(
                "ask for it in a message",
                {
                    "text.verbosity": ("medium",),
                    "verbosity": ("medium",),
                    "output_config.task_budget": (),
                    "grammar_lazy": _OFF,
                    "grammar_triggers": (),
                    "n_indent": (0,),
                },
            ),
            *_refused(
                "say it as this endpoint does: reasoning_effort and thinking_token_budget in chat, reasoning in responses, "
                "thinking in messages",
                {
                    "thinking": ({"type": "disabled"}, False),
                    "enable_thinking": _OFF,
                    "thinking_token_budget": (),
                    "max_thinking_tokens": (),
                    "thinking_budget": (),
                    "reasoning": ({"effort": "none"}, {"enabled": False}),
                    "reasoning_effort": ("none",),
                    "include_reasoning": _EITHER,
                    "reasoning_budget_tokens": (-1,),
                    "output_config.effort": (),
                },
                of_prompt=True,
            ),
            *_refused(
                "thinking is always told apart from the answer; include_reasoning of chat says whether it is told at all",
                {
                    "separate_reasoning": (True,),
                    "stream_reasoning": (True,),
                    "reasoning_format": ("auto", "deepseek"),
                    "reasoning_control": _OFF,
                    "thinking_forced_open": _OFF,
                    "task": (),
                },
                of_prompt=True,
            ),
            *_refused(
                "say it as this endpoint does: response_format in chat and completions, text.format in responses, "
                "output_config.format in messages, structured_outputs in all",
                {
                    "response_format": ({"type": "text"},),
                    "text.format": ({"type": "text"},),
                    "output_format": (),
                    "output_config": (),
                },
            ),
            *_refused(
                "serve the model with the adapter merged into its weights",
                _any(
                    "lora",
                    "lora_adapter",
                    "lora_path",
                    "lora_request",
                    "adapter_id",
                    "adapter_source",
                    "adapter_parameters",
                ),
            ),
            *_refused(
                "put the text of it into a message",
                {
                    "documents": (),
                    "chat_template": (),
                    "guideline": (),
                    "system": (),
                    "instructions": (),
                    "inputs": (),
                    "input_ids": (),
                    "generation_prompt": (),
                },
                of_prompt=True,
            ),
            *_refused(
                "send text, or token ids to /v1/completions",
                {
                    "prompt_embeds": (),
                    "input_embeds": (),
                    "multimodal_data": (),
                    "image_data": (),
                    "image": (),
                    "audio": (),
                    "modalities": (["text"],),
                    "media_io_kwargs": (),
                    "mm_processor_kwargs": (),
                    "images_config": (),
                    "max_dynamic_patch": (),
                    "min_dynamic_patch": (),
                    "use_audio_in_video": _OFF,
                },
                of_prompt=True,
            ),
            *_refused(
                "the chat template adds them; /v1/completions lets you choose", {"add_special_tokens": _OFF}, of_prompt=True
            ),
            *_refused(
                "nothing is stored here: send the whole conversation with each request",
                {
                    "store": _OFF,
                    "background": _OFF,
                    "previous_response_id": (),
                    "previous_response": (),
                    "previous_input_messages": (),
                    "conversation": (),
                    "context_management": (),
                    "compaction": (),
                    "thread": (),
                    "session_params": (),
                },
                of_prompt=True,
            ),
            *_refused(
                "cut the prompt yourself; chat and completions know truncate_prompt_tokens",
                {
                    "truncation": ("disabled",),
                    "truncation_side": ("left",),
                    "truncate": (),
                    "truncate_prompt_tokens": (),
                    "n_keep": (0,),
                    "n_discard": (0,),
                },
            ),
            *_refused(
                "say it as this endpoint does: max_tokens, or max_completion_tokens in chat, or max_output_tokens in responses",
                {
                    "max_tokens": (),
                    "max_completion_tokens": (),
                    "max_output_tokens": (),
                    "max_new_tokens": (),
                    "max_length": (),
                    "n_predict": (-1,),
                    "min_new_tokens": (0,),
                },
            ),
            *_refused("use timeout, in seconds", {"t_max_predict_ms": (-1, 0)}),
            *_refused(
                "use stop, or stop_sequences in messages; with include_stop_str_in_output it stays in the text",
                {
                    "stop": (),
                    "stop_sequences": (),
                    "stop_regex": (),
                    "no_stop_trim": _OFF,
                    "repetition_detection": (),
                },
            ),
            *_refused(
                "use logit_bias or allowed_token_ids",
                {"bad_words": (), "logits_processors": (), "custom_logit_processor": (), "custom_params": ()},
            ),
            *_refused(
                "ask for n samples and choose yourself",
                {
                    "best_of": (1,),  # any that equals n: checked with it
                    "n_cmpl": (1,),
                    "use_beam_search": _OFF,
                    "length_penalty": (1,),
                    "early_stopping": _OFF,
                },
            ),
            *_refused("send as many requests as there are to be answers", {"n": (1,)}),
            *_refused(
                "use logprobs of chat or completions",
                {
                    "logprobs": _OFF,
                    "top_logprobs": (0,),
                    "prompt_logprobs": (),
                    "prompt_logprobs_start": (),
                    "logprob_token_ids": (),
                    "n_probs": (0,),
                    "top_n_tokens": (0,),
                    "post_sampling_probs": _OFF,
                    "decoder_input_details": _OFF,
                    "return_hidden_states": _OFF,
                    "return_routed_experts": _OFF,
                },
            ),
            *_refused(
                "use return_token_ids of chat or completions",
                {
                    "return_token_ids": _OFF,
                    "return_tokens_as_token_ids": _OFF,
                    "return_tokens": _OFF,
                    "return_prompt_token_ids": _OFF,
                    "return_prompt_text": _OFF,
                },
            ),
            *_refused("use /v1/completions, which can begin its text with the prompt", {"echo": _OFF, "return_full_text": _OFF}),
            *_refused("send the text before the gap as the prompt", {"suffix": ()}),
            *_refused("use temperature 0 for the likeliest tokens", {"do_sample": (True,)}),
            *_refused("check texts before you send them", {"moderation": ()}),
            *_refused("ask another server yourself: this one has one model", {"fallbacks": ()}),
            *_refused("use service_class or service_tier", {"priority": (0,), "speed": ("standard",)}),
            *_refused(
                "leave it out: the text comes as the tokenizer writes it",
                {
                    "detokenize": (True,),
                    "spaces_between_special_tokens": (True,),
                    "watermark": _OFF,
                    "watermarking": _OFF,
                },
            ),
            *_refused(
                "leave it out: one engine computes the whole answer",
                {
                    "kv_transfer_params": (),
                    "kv_transfer_params_json": (),
                    "ec_transfer_params": (),
                    "vllm_xargs": (),
                    "bootstrap_host": (),
                    "bootstrap_port": (),
                    "bootstrap_room": (),
                    "mm_inputs": (),
                    "extra_mm_inputs": (),
                    "media_refs": (),
                    "data_parallel_rank": (0,),
                    "routed_dp_rank": (0,),
                    "id_slot": (-1,),
                },
            ),
            *_group(
                Kind.WARNED,
                "use temperature, top_k, top_p, min_p, typical_p, top_n_sigma and the three penalties",
                {
                    "mirostat": (0,),
                    "mirostat_mode": (0,),
                    "dry_multiplier": (0,),
                    "xtc_probability": (0,),
                    "typical": (1, 0),
                    "tfs_z": (1,),
                    "tfs": (1,),
                    "top_a": (0,),
                    "dynatemp_range": (0,),
                    "dynamic_temperature": _OFF,
                    "smoothing_factor": (0,),
                    "adaptive_target": (-1,),
                    "repeat_penalty": (1,),
                    "rep_pen": (1,),
                    "encoder_repetition_penalty": (1,),
                    "no_repeat_ngram_size": (0,),
                    "penalty_alpha": (0,),
                    "epsilon_cutoff": (0,),
                    "eta_cutoff": (0,),
                    "guidance_scale": (1,),
                    "samplers": (),
                    "sampler_priority": (),
                    "min_keep": (0,),
                },
            ),
            *_group(
                Kind.WARNED,
                "there are no summaries: responses tell all that was thought",
                _any("reasoning.summary", "reasoning.generate_summary"),
            ),
            *_group(
                Kind.NO_EFFECT,
                "it may stay",
                _any(
                    "user",
                    "metadata",
                    "guided_decoding_backend",
                    "safety_identifier",
                    "prompt_cache_key",
                    "prompt_cache_retention",
                    "prompt_cache_options",
                    "cache_control",
                    "inference_geo",
                    "diagnostics",
                    "billing_policy",
                    "access_programs",
                    "betas",
                    "user_profile_id",
                    "workspace_id",
                    "session_id",
                    "rid",
                    "extra_key",
                    "custom_labels",
                    "prediction",
                    "cache_prompt",
                    "n_cache_reuse",
                    "stream_interval",
                    "sse_ping_interval",
                    "timings_per_token",
                    "return_progress",
                    "return_cached_tokens_details",
                    "details",
                    "verbose",
                    "backend_sampling",
                    "mirostat_tau",
                    "mirostat_eta",
                    "dry_base",
                    "dry_allowed_length",
                    "dry_penalty_last_n",
                    "dry_sequence_breakers",
                    "xtc_threshold",
                    "dynatemp_exponent",
                    "adaptive_decay",
                    "repeat_last_n",
                    "preserved_tokens",
                ),
            ),
        )
    )
)

# Of one surface only: elsewhere the word means another thing.
OF_RESPONSES: Mapping[str, Unsupported] = MappingProxyType(
    dict(_refused("write the prompt out as input", _any("prompt"), of_prompt=True))
)
OF_GENERATE: Mapping[str, Unsupported] = MappingProxyType(
    dict(
        (
            *_refused("send token ids of text", _any("features", "content_parts")),
            *_refused(
                "leave it out: the form of the output is held to from its first token",
                {"reasoning_ended": (True,), "reasoning_parser_kwargs": ()},
            ),
            *_refused("use sampling_params.logprobs", {"return_token_logprobs": _OFF, "return_top_k_logprobs": _OFF}),
        )
    )
)
OF_SAMPLING_PARAMS: Mapping[str, Unsupported] = MappingProxyType(
    dict(
        (
            *_refused("leave it out: nothing here takes it", _any("extra_args")),
            *_refused("use cache_salt to share no prefixes with others", {"skip_reading_prefix_cache": _OFF}),
            *_refused(
                "use prompt_logprobs and prompt_logprobs_start", {"prompt_logprob_token_ids": (), "prompt_logprob_start": (0,)}
            ),
            *_refused("use prompt_logprobs to score tokens that are given", _any("trace_decode_token_ids")),
            *_refused("leave it out: servers do not tell routed experts", {"routed_experts_prompt_start": (0,)}),
        )
    )
)
OF_MESSAGE: Mapping[str, Unsupported] = MappingProxyType(
    dict(
        (
            *_refused("use tool_calls and messages of the role tool", _any("function_call")),
            *_refused("leave it out of what is sent back", _any("refusal")),
            *_refused("send text", _any("audio")),
        )
    )
)
