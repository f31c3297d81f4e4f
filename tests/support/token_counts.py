"""Hooks of schemathesis: what no schema can say of a request, as it depends on how many tokens there are and how long they take.

Such a refusal is taken for one of what is not there, which schemathesis's default configuration allows; all else stays as it is.
"""

from __future__ import annotations

from typing import Any

import schemathesis

# A prompt against the context and against numbers that the same request gives; numbers against each other; time against load.
_COUNTED = ("max_total_tokens is", "prompt_logprobs_start", "min_tokens must be between", "max_tokens 0 needs a prompt")
_SAID = ("maximum context length", "can wait together")
_LATE = ("deadline_exceeded", "overloaded", "timeout_error", "overloaded_error")


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    if response.status_code not in (400, 503, 504):
        return
    error = response.json()["error"]
    message = error["message"]
    late = response.status_code != 400 and error.get("code", error["type"]) in _LATE and "timeout" in message
    if late or message.startswith(_COUNTED) or any(words in message for words in _SAID):
        response.status_code = 404
