"""What litellm sees of a server, as JSON: a program, since its imports warn."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm
import openai

SUM: Any = [{"role": "user", "content": "What is 17 + 25?"}]


def failure(asked: dict[str, Any], change: dict[str, Any]) -> list[Any]:
    """The class and status of the error that a changed request gets."""
    try:
        litellm.completion(**{**asked, **change})
    except openai.APIStatusError as error:  # litellm's own are kinds of it
        return [type(error).__name__, error.status_code]
    return []


def main() -> None:
    base, key = sys.argv[1:]
    litellm.suppress_debug_info = True
    where = {"api_base": f"{base}/v1", "api_key": key}
    asked: dict[str, Any] = {"model": "openai/pico", "messages": SUM, "temperature": 0, "max_tokens": 16, **where}
    whole: Any = litellm.completion(**asked, logprobs=True, top_logprobs=2)
    chunks: Any = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    text: Any = litellm.text_completion(model="text-completion-openai/pico", prompt="1 2 3", temperature=0, max_tokens=5, **where)
    response: Any = litellm.responses(model="openai/pico", input=SUM[0]["content"], temperature=0, **where)
    message: Any = litellm.completion(**{**asked, "model": "anthropic/pico", "api_base": base})
    seen = {
        "chat": whole.choices[0].message.content,
        "logprobs": [token.token for token in whole.choices[0].logprobs.content],
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "text": text.choices[0].text,
        "response": response.output[0].content[0].text,
        "message": message.choices[0].message.content,
        "usage": [whole.usage.total_tokens, chunks[-1].usage.total_tokens, text.usage.completion_tokens],
        "tokens": sum(part.usage.completion_tokens for part in (whole, chunks[-1], text, message)) + response.usage.output_tokens,
        "failures": [
            failure(asked, change)
            for change in ({"temperature": -1}, {"api_key": "sk-wrong"}, {"model": "openai/other"}, {"max_tokens": 10_000})
        ],
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
