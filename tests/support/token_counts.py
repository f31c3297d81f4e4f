"""Hooks of schemathesis: what no schema can say of a request. How many tokens there are and their time; what is a grammar;
whether calls, results and tools go together; what the model can do; what an edit of the context would change.

Such a refusal is taken for one of what is not there, which schemathesis's default configuration allows; all else stays as it is.
"""

from __future__ import annotations

from typing import Any

import schemathesis

# Two ways to say what form the output must have, or one that is none or is not made; the hash engine knows no grammars.
_FORMS = (
    "each says what the output looks like",
    "must have exactly one of",
    "must be left out with",
    "must not be text where detokenize is false",
    "no tokenizer, which grammars need",
)
# Calls and results of a conversation, tools and the one that is chosen; the hash engine neither calls nor thinks.
_CALLS = (
    "must be the id of a call of a message before",
    "must be the JSON text of an object",
    "in a message of the role",
    "their results must come in a message after it",
    "is the name of another tool",
    "which is not in tools",
    "there are no tools",
    "cannot be given together with",
    "is not supported with this model",
    "would change this conversation",
)
# Bounds of every value of a body, also of unknown fields.
_BOUNDS = ("must be an integer of 64 bits", "must be a finite number", "may be inside one another", "half of a surrogate pair")
# A prompt against the context and against numbers that the same request gives; numbers against each other; time against load.
_COUNTED = ("max_total_tokens is", "prompt_logprobs_start", "min_tokens must be between", "max_tokens 0 needs a prompt")
_SAID = ("maximum context length", "can wait together", *_FORMS, *_CALLS, *_BOUNDS)
_LATE = ("deadline_exceeded", "overloaded", "timeout_error", "overloaded_error")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """The stream that has no end by itself ends soon, unless the number of its frames is what is tried."""
    query = case.query or {}
    few = str(query.get("frames", 9))
    if case.path == "/debug/engine" and few.isdecimal() and int(few) > 2:
        case.query = {**query, "frames": 2}


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    if response.status_code not in (400, 503, 504):
        return
    error = response.json()["error"]
    message = error["message"]
    late = response.status_code != 400 and error.get("code", error["type"]) in _LATE and "timeout" in message
    if late or message.startswith(_COUNTED) or any(words in message for words in _SAID):
        response.status_code = 404
