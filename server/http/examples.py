"""Answers as the API's document shows them."""

from __future__ import annotations

from typing import Any

_USAGE = {
    "prompt_tokens": 16,
    "completion_tokens": 3,
    "total_tokens": 19,
    "prompt_tokens_details": {"cached_tokens": 0},
}
_HEAD = {"created": 1767225600, "model": "pico", "system_fingerprint": "fp_7d4e"}

CHAT: dict[str, Any] = {
    "id": "chatcmpl-7d4e",
    "object": "chat.completion",
    **_HEAD,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "42", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": _USAGE,
}
CHAT_STREAM = """data: {"id":"chatcmpl-7d4e","object":"chat.completion.chunk","created":1767225600,"model":"pico",\
"system_fingerprint":"fp_7d4e","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

data: {"id":"chatcmpl-7d4e","object":"chat.completion.chunk","created":1767225600,"model":"pico",\
"system_fingerprint":"fp_7d4e","choices":[{"index":0,"delta":{"content":"42"},"logprobs":null,"finish_reason":null}]}

data: {"id":"chatcmpl-7d4e","object":"chat.completion.chunk","created":1767225600,"model":"pico",\
"system_fingerprint":"fp_7d4e","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}

data: [DONE]

"""

COMPLETION: dict[str, Any] = {
    "id": "cmpl-7d4e",
    "object": "text_completion",
    **_HEAD,
    "choices": [{"index": 0, "text": " 42", "logprobs": None, "finish_reason": "stop"}],
    "usage": _USAGE,
}
COMPLETION_STREAM = """data: {"id":"cmpl-7d4e","object":"text_completion","created":1767225600,"model":"pico",\
"system_fingerprint":"fp_7d4e","choices":[{"index":0,"text":" 42","logprobs":null,"finish_reason":null}]}

data: {"id":"cmpl-7d4e","object":"text_completion","created":1767225600,"model":"pico",\
"system_fingerprint":"fp_7d4e","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}

data: [DONE]

"""

GENERATE: dict[str, Any] = {
    "request_id": "generate-tokens-7d4e",
    "output_mode": "tokens",
    "created": 1767225600,
    "model": "pico",
    "choices": [{"index": 0, "token_ids": [222, 87, 1], "logprobs": None, "finish_reason": "stop"}],
    "usage": _USAGE,
    "prompt_logprobs": None,
    "prompt_token_ids": None,
}
GENERATE_STREAM = """data: {"request_id":"generate-tokens-7d4e","output_mode":"tokens",\
"choices":[{"index":0,"token_ids":[222],"logprobs":null,"finish_reason":null}]}

data: {"request_id":"generate-tokens-7d4e","output_mode":"tokens",\
"choices":[{"index":0,"token_ids":[],"logprobs":null,"finish_reason":"stop"}]}

data: [DONE]

"""

RESPONSE: dict[str, Any] = {
    "id": "resp_7d4e",
    "object": "response",
    "created_at": 1767225600,
    "status": "completed",
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": 16,
    "model": "pico",
    "output": [
        {
            "id": "msg_7d4e",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "42", "annotations": [], "logprobs": []}],
        }
    ],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "temperature": 0.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": {
        "input_tokens": 16,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 19,
    },
    "user": None,
    "metadata": {},
}
RESPONSE_STREAM = """event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_7d4e","output_index":0,"content_index":0,\
"delta":"42","logprobs":[]}

"""

MESSAGE: dict[str, Any] = {
    "id": "msg_7d4e",
    "type": "message",
    "role": "assistant",
    "model": "pico",
    "content": [{"type": "text", "text": "42"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 16, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 3},
}
MESSAGE_STREAM = """event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"42"}}

"""

TOKENS: dict[str, Any] = {"count": 2, "max_model_len": 512, "tokens": [104, 105], "token_strs": ["h", "i"]}
TOKENIZER: dict[str, Any] = {
    "tokenizer_class": "HuggingFaceTokenizer",
    "vocab_size": 512,
    "model_max_length": 512,
    "bos_token": "<s>",
    "bos_token_id": 0,
    "eos_token": "</s>",
    "eos_token_id": 1,
    "special_tokens": {"<s>": 0, "</s>": 1},
    "chat_template": "{% for message in messages %}...",
}
MODEL: dict[str, Any] = {"id": "pico", "object": "model", "created": 1767225600, "owned_by": "jaxserve", "max_model_len": 512}

LOAD: dict[str, Any] = {"server_load": 3, "running": 2, "waiting": 1, "kv_cache_usage": 0.25}
ENGINE_FRAME = """data: {"engine":"5f0c7d4e91ab","model":"pico","engines":[{"life":"5f0c7d4e91ab","model":"pico","running":1,\
"waiting":0}],"interval":0.25,"clock":912.25,"unix":1767225600.5,"first_turn":40,\
"turns":[[912.24,210,480,1900,1960,2010,38,1,1,0,0,37,0,-1500,1,0,509,false,1]],"generated":22,"spans":[],"first_preemption":0,"preempted":[],\
"now":{"running":1,"waiting":0,"rows":[{"id":"1/0/0","service_class":"interactive_paid","tenant":"","arrival":911.9,\
"admitted":911.91,"prompt_tokens":16,"computed":38,"output_tokens":22,"pages":3,"preemptions":0}],"more_rows":0,"queues":[],\
"more_waiting":0,"pages":{"total":512,"running":3,"cached":0,"free":509,"pinned":0,"swapped":0,"swap_total":0,"size":16},\
"prefix_queries":16,"prefix_hits":0,"preemptions":{},"lost_tokens":0,\
"pace":{"ttft_target":0.0,"itl_target":0.05,"itl_kept":0.05,"due":0.0,"broken":0.0}},\
"programs":{"compiled_programs":31,"late_compiles":0,"bucket_misses":0,"padding_tokens":12},\
"speculation":{"method":"none","drafts":0,"draft_tokens":0,"accepted_tokens":0},\
"weight_version":null,"paused":false,"stalled":0.0,"failure":null,"death":null}

"""
KV_EVENT_SOURCE: dict[str, Any] = {
    "data_parallel_rank": 0,
    "endpoint": "tcp://10.0.0.1:5557",
    "replay_endpoint": None,
    "topic": "",
}
SERVER_INFO: dict[str, Any] = {
    "version": "0.1.0",
    "served_model_name": "pico",
    "served_model_names": ["pico"],
    "architecture": "LlamaForCausalLM",
    "dtype": "float32",
    "parameters": 1000000,
    "vocab_size": 512,
    "max_model_len": 512,
    "created": 1767225600,
    "load": LOAD,
}

FILE: dict[str, Any] = {
    "id": "file-7d4e",
    "object": "file",
    "bytes": 4096,
    "created_at": 1767225600,
    "expires_at": 1769817600,
    "filename": "requests.jsonl",
    "purpose": "batch",
    "status": "processed",
}
FILES: dict[str, Any] = {"object": "list", "data": [FILE], "first_id": FILE["id"], "last_id": FILE["id"], "has_more": False}
BATCH: dict[str, Any] = {
    "id": "batch_7d4e",
    "object": "batch",
    "endpoint": "/v1/chat/completions",
    "model": "pico",
    "errors": None,
    "input_file_id": FILE["id"],
    "completion_window": "24h",
    "status": "in_progress",
    "output_file_id": None,
    "error_file_id": None,
    "created_at": 1767225600,
    "in_progress_at": 1767225601,
    "expires_at": 1767312000,
    "finalizing_at": None,
    "completed_at": None,
    "failed_at": None,
    "expired_at": None,
    "cancelling_at": None,
    "cancelled_at": None,
    "request_counts": {"total": 100, "completed": 40, "failed": 1},
    "usage": {
        "input_tokens": 640,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 120,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 760,
    },
    "metadata": {"night": "1"},
}
BATCHES: dict[str, Any] = {"object": "list", "data": [BATCH], "first_id": BATCH["id"], "last_id": BATCH["id"], "has_more": False}
STREAM: dict[str, Any] = {"id": "chat-7", "object": "stream", "status": "running", "events": 12, "created_at": 1767225600}
STREAMS: dict[str, Any] = {"object": "list", "data": [STREAM]}
RESUMED = """: keep-alive

id: 13
data: {"id":"cmpl-7d4e","object":"text_completion","created":1767225600,"model":"pico",\
"choices":[{"index":0,"text":" 42","logprobs":null,"finish_reason":"stop"}]}

id: 14
data: [DONE]

"""

_PROMPT_USAGE = {"prompt_tokens": 8, "total_tokens": 8}
_LIST = {"object": "list", "created": 1767225600, "model": "pico"}
EMBEDDINGS: dict[str, Any] = {
    "id": "embd-7d4e",
    **_LIST,
    "data": [{"index": 0, "object": "embedding", "embedding": [0.25, -0.5]}],
    "usage": _PROMPT_USAGE,
}
COHERE: dict[str, Any] = {
    "id": "embd-7d4e",
    "response_type": "embeddings_by_type",
    "embeddings": {"float": [[0.25, -0.5]]},
    "texts": ["17 + 25"],
    "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 7}},
}
POOLING: dict[str, Any] = {
    "id": "pool-7d4e",
    **_LIST,
    "data": [{"index": 0, "object": "pooling", "data": [[0.25, -0.5], [0.5, 0.75]]}],
    "usage": _PROMPT_USAGE,
}
CLASSES: dict[str, Any] = {
    "id": "classify-7d4e",
    **_LIST,
    "data": [{"index": 0, "label": "good", "probs": [0.75, 0.25], "num_classes": 2}],
    "usage": _PROMPT_USAGE,
}
SCORES: dict[str, Any] = {
    "id": "score-7d4e",
    **_LIST,
    "data": [{"index": 0, "object": "score", "score": 0.75}],
    "usage": _PROMPT_USAGE,
}
RERANKED: dict[str, Any] = {
    "id": "rerank-7d4e",
    "model": "pico",
    "results": [{"index": 1, "relevance_score": 0.75, "document": {"text": "42"}}],
    "usage": _PROMPT_USAGE,
}
