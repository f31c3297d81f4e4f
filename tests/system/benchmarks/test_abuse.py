"""The attacks are what they say: at the bounds, or beyond them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.abuse_attacks import ATTACKS, CHAT, TOKENIZE, Attack, Facts
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.server import ServerConfig
from jaxserve.engine.bounds import RequestBounds
from jaxserve.errors import JaxserveError
from jaxserve.sampling.params import SamplingParams
from server.http.prompts import prompts_in
from server.http.protocol import ChatRequest, CompletionRequest
from server.json_values import MAX_VALUES
from server.requests import engine_prompt

FACTS = Facts(context=512, vocabulary=1024, token_bytes=32)
BOUNDS = RequestBounds(
    context=FACTS.context,
    sequences=SchedulerConfig().max_waiting,
    logprob_values=SchedulerConfig().max_logprob_values,
    token_bytes=FACTS.token_bytes,
)


def is_refused(attack: Attack) -> bool:
    """Whether a server refuses the body, by its bounds."""
    raw = attack.encoded(FACTS)
    if len(raw) > ServerConfig().max_body_bytes or raw.count(b",") + 3 * raw.count(b":") > MAX_VALUES:
        return True
    body: dict[str, Any] = json.loads(raw)
    try:
        if attack.path == TOKENIZE:
            BOUNDS.check_text(body["prompt"])
            return False
        request = (ChatRequest if attack.path == CHAT else CompletionRequest).model_validate(body)
        params = SamplingParams(**{name: value for name, value in request.sampling().items() if value is not None})
        if isinstance(request, ChatRequest):
            BOUNDS.check_messages(body["messages"])
            return False
        prompts = [engine_prompt(prompt) for prompt in prompts_in(request.prompt)]
        if request.truncate_prompt_tokens is None:
            BOUNDS.check(prompts, params)
        BOUNDS.check_count(len(prompts), params)
    except JaxserveError:
        return True
    return False


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_refused_are_beyond_a_bound_and_the_others_within_all(attack: Attack) -> None:
    assert is_refused(attack) == (attack.kind == "refused")
